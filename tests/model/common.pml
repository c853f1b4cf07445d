/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What hmm.pml and planned.pml have in common: frames, the CPU's page tables, the mmap lock, the migration code of the core,
 * and the entries, TLB and accesses of devices.
 *
 * Included after the mtype of the rules that a model can break, and before the model itself, which defines event() and
 * event_end() for the notifier's invalidate_range_start() and invalidate_range_end().
 */
#ifndef SPACES
#define SPACES 1
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef OPS
#define OPS 2
#endif
#ifndef NP
#define NP 1
#endif
/* Processes of a scenario, without init. */
#ifndef NACT
#define NACT 4
#endif
#define NV (SPACES * NP)
#define BIT(v) (1 << (v))
/* All pages but v. */
#define WITHOUT(v) (BIT(NV) - 1 - BIT(v))
#if NV > 8
#define PAGE_SET int
#else
#define PAGE_SET byte
#endif
#define NMI (SPACES * DEVICES)
#define V(m, p) ((m) * NP + (p))
#define MM(v) ((v) / NP)
#define MI(m, d) ((m) * DEVICES + (d))
/* The entry of page v of a process in the table of device d. */
#define T(v, d) ((v) * DEVICES + (d))

/* Frames: 0 is none; then those of the system, then those of each device. */
#ifndef NSYS
#define NSYS 3
#endif
#ifndef NDEV
#define NDEV 2
#endif
#define NF (1 + NSYS + MEMORIES * NDEV)
#define IS_SYS(f) ((f) <= NSYS)
/* With ONE_MEMORY the devices are mirrors of one device: they have the same memory, and the same owner. */
#ifdef ONE_MEMORY
#define MEMORIES 1
#define MEM(d) 0
#else
#define MEMORIES DEVICES
#define MEM(d) (d)
#endif
#define MEM_OF(f) (((f) - NSYS - 1) / NDEV)
/*
 * With COHERENT, CPUs use the memory of devices in place; and with HOLE they have read the page, so that the zero page is
 * mapped there, frame 1.
 */
#ifdef COHERENT
#define ZERO 1
#define IS_ZERO(f) ((f) == ZERO)
#define PTE_OF_DEVICE PRESENT
#else
#define IS_ZERO(f) 0
#define PTE_OF_DEVICE DEVICE
#endif
/* Whether frame f, which is no frame of the system, is in the memory of device d. */
#define HAS(d, f) (MEM_OF(f) == MEM(d))

mtype = { CLEAR, MIGRATE, PROTECT, UNMAP };
mtype = { NONE, PRESENT, MIGRATING, DEVICE };
/* Rules that each of the models can break. */
mtype = {
	EVERY_RULE_HOLDS,
	/* A device write to a page that MADV_FREE gave away is not dirty; merged pages are isolated: see faultless.rst. */
	H16, H17,
	/* An invalidation ends before the device has stopped using the entry (rule 2). */
	RULE2,
	/* The device holds a reference of each page that it has mapped (rule 4). */
	RULE4,
	/* A device write does not break copy on write (rule 6). */
	RULE6,
	/* A migration works on an address space whose process has ended. */
	MMGET
};
mtype off = OFF;

/* The CPU's page tables. */
mtype pte[NV] = NONE;
byte pte_f[NV];
bit pte_w[NV];
/* Mapped; may be written. */
bit vm[NV];
bit vm_w[NV];
/* Ghost: write access was taken by mprotect() or userfaultfd, and no device may write until it is given back. */
bit frozen[NV];
/* mm_users: the process itself, and each process that works on its address space. */
byte users[SPACES];
byte mm_readers[SPACES];
bit mm_writer[SPACES];

bit used[NF];
byte mapped[NF];	/* entries of page tables */
bit isolated[NF];	/* a migration holds it */
bit locked[NF];
bit dirty[NF];
bit lazy[NF];		/* MADV_FREE */
bit merged[NF];		/* KSM */
bit pinned[NF];		/* for good, by a user that is not modelled */

/* Ghost: of each frame the pages whose last write it has; pages that have to be zero; those that MADV_FREE gave away. */
PAGE_SET fresh[NF];
PAGE_SET zero;
PAGE_SET given;

/* The tables of the devices. */
byte entry[NV * DEVICES];
bit entry_w[NV * DEVICES];
/* Of each mirror, changes that are not flushed. */
byte changing[NMI];
/*
 * The engines of each mirror: their translations, and accesses that are under way, by page. With
 * NO_TLB a translation is used as long as an access takes, which may be long: then it is as if it were cached.
 */
#ifndef NO_TLB
byte tlb[NV * DEVICES];
bit tlb_w[NV * DEVICES];
#endif
byte busy[NV * DEVICES];
/* Where the device has read and written before. */
bit warm[NV * DEVICES];
bit warm_w[NV * DEVICES];
/* Nothing but migrations happens in this scenario; nor can any page move. */
bit quiet;
bit still;
/* The memory of the device cannot be read any more. */
bit dead[DEVICES];
/* The copy of a page that was to be saved has failed: such pages stay, and are lost with the device. */
bit lost[DEVICES];

/* Processes that have not ended. */
byte left;

#define STOPPED(f) (!IS_SYS(f) && dead[MEM_OF(f)])
/* Whether frame f has no references that keep it from moving, or from being freed. */
#ifndef CAN_MOVE
#define CAN_MOVE(f) 1
#define CAN_FREE(f) 1
#endif
/* With FAIR_LOCKS a reader waits behind a writer that waits, as in an rwsem. */
#ifdef FAIR_LOCKS
byte mm_writers_waiting[SPACES];
#define MAY_READ(m) (!mm_writer[m] && mm_writers_waiting[m] == 0)
#else
#define MAY_READ(m) (!mm_writer[m])
#endif

inline alloc_from(f, first, end) {
	d_step {
		f = first;
		do
		:: f < (end) && used[f] -> f++
		:: else -> break
		od;
		if
		:: f < (end) -> used[f] = 1
		:: else -> f = 0
		fi
	}
}

inline alloc_system(f) { alloc_from(f, 1, NSYS + 1) }

inline alloc_device(f, d) { alloc_from(f, NSYS + 1 + MEM(d) * NDEV, NSYS + 1 + (MEM(d) + 1) * NDEV) }

/* Frees frame f if it is neither mapped nor referenced. Within a step. */
inline put(f) {
	if
	:: mapped[f] == 0 && !isolated[f] && CAN_FREE(f) -> used[f] = 0; locked[f] = 0; fresh[f] = 0; dirty[f] = 0; lazy[f] = 0; merged[f] = 0
	:: else
	fi
}

/* Page v has new contents, in frame f or, with 0, none. Within a step. */
inline written(v, f) {
	x_i = 1;
	do
	:: x_i < NF -> fresh[x_i] = fresh[x_i] & WITHOUT(v); x_i++
	:: else -> break
	od;
	x_i = 0;
	given = given & WITHOUT(v);
	if
	/* Other pages that share the frame have lost their contents. */
	:: f != 0 -> fresh[f] = BIT(v); zero = zero & WITHOUT(v)
	:: else -> zero = zero | BIT(v)
	fi
}

/* Unmaps page v. Within a step. */
inline zap(v) {
	if
	:: pte[v] == PRESENT || pte[v] == DEVICE -> mapped[pte_f[v]]--; put(pte_f[v])
	:: else
	fi;
	printf("page %d is unmapped\n", v);
	pte[v] = NONE; pte_f[v] = 0; pte_w[v] = 0
}

/* A new page of zeros at v, if there is none. */
inline populate(v) {
	alloc_system(n);
	d_step {
		if
		:: n != 0 && pte[v] == NONE ->
			pte[v] = PRESENT; pte_f[v] = n; pte_w[v] = vm_w[v]; mapped[n] = 1; fresh[n] = zero & BIT(v)
		:: n != 0 && pte[v] != NONE -> put(n)
		:: else
		fi;
		n = 0
	}
}

/* Takes the mmap lock of an address space that has not ended. What comes before it is only a reference. */
inline mmget_and_read(m, alive) {
	d_step {
		MAY_READ(m) -> mm_readers[m]++;
		alive = users[m] > 0 || off == MMGET;
		users[m] = users[m] + alive
	}
}

inline mmap_read(m) { d_step { MAY_READ(m) -> mm_readers[m]++ } }

inline mmap_read_unlock(m) { mm_readers[m]-- }

inline mmap_write(m) {
#ifdef FAIR_LOCKS
	mm_writers_waiting[m]++;
	d_step { !mm_writer[m] && mm_readers[m] == 0 -> mm_writer[m] = 1; mm_writers_waiting[m]-- }
#else
	d_step { !mm_writer[m] && mm_readers[m] == 0 -> mm_writer[m] = 1 }
#endif
}

inline mmap_write_unlock(m) { mm_writer[m] = 0 }

/* Waits until device d uses nothing of page v that it should not. Ends a change. */
#ifdef NO_TLB
#define IDLE(v, d) (busy[T(v, d)] == 0 || off == RULE2)
inline flush(v, d) { d_step { IDLE(v, d) -> changing[MI(MM(v), d)]--; printf("device %d: flush of page %d is over\n", d, v) } }
#else
inline flush(v, d) {
	d_step { printf("device %d: flush of page %d begins\n", d, v); tlb[T(v, d)] = 0; tlb_w[T(v, d)] = 0 }
	(busy[T(v, d)] == 0 || off == RULE2);
	d_step { changing[MI(MM(v), d)]--; printf("device %d: flush of page %d is over\n", d, v) }
}
#endif

/* An entry goes. What the device may have written is dirty. Within a step. */
inline retire(t) {
	if
	:: entry_w[t] && IS_SYS(entry[t]) && off != H16 -> dirty[entry[t]] = 1
	:: else
	fi
}

/* Frame s, which is locked, leaves all page tables, each with an event of its own. */
inline unmap_by_rmap(a) {
	x_v = 0;
	do
	:: x_v < NV ->
		if
		:: d_step { pte_f[x_v] == s && (pte[x_v] == PRESENT || pte[x_v] == DEVICE) -> skip };
			event(x_v, CLEAR, 0, a);
			d_step {
				if
				:: pte_f[x_v] == s && (pte[x_v] == PRESENT || pte[x_v] == DEVICE) ->
					pte[x_v] = MIGRATING; mapped[s]--; took = 1;
					printf("%d: isolates page %d, frame %d, by the reverse mapping\n", a, x_v, s)
				:: else
				fi
			};
			event_end(x_v)
		:: else
		fi;
		x_v++
	:: else -> break
	od;
	atomic { x_v = 0; took = took && mapped[s] == 0 && CAN_MOVE(s) }
}

/* Frame s, which is locked, leaves the page tables: v's, or by the reverse mapping all. */
inline unmap(v, a) {
	d_step {
		took = 0;
		if
		:: mapped[s] == 1 && CAN_MOVE(s) && pte_f[v] == s && (pte[v] == PRESENT || pte[v] == DEVICE) && !(off == RULE4 && entry[T(v, 0)] == s) ->
			pte[v] = MIGRATING; mapped[s] = 0; w = pte_w[v]; took = 1;
			printf("%d: isolates page %d, frame %d\n", a, v, s)
		:: else
		fi
	}
	if
	:: took || off == RULE4
	:: else -> unmap_by_rmap(a)
	fi
}

/* Takes page v for a migration of a, from system memory or, if from is a device, from there: s, if it can move. */
inline isolate(v, system, d, a) {
	d_step {
		s = 0; hole = 0;
		if
		:: ((system && pte[v] == PRESENT && !IS_ZERO(pte_f[v])) || (!(system) && pte[v] == DEVICE && HAS(d, pte_f[v]))) && !locked[pte_f[v]] && (!merged[pte_f[v]] || off == H17) && !pinned[pte_f[v]] ->
			s = pte_f[v]; locked[s] = 1; isolated[s] = 1
		:: system && (pte[v] == NONE || IS_ZERO(pte_f[v])) && vm[v] -> hole = 1
		:: else
		fi
	}
	if
	:: s != 0 -> unmap(v, a)
	:: else -> took = hole
	fi
}

/* Copies s to n, which may fail, or be missing. What is lost with its device cannot be copied. */
inline copy() {
	if
	:: n != 0 && took ->
		d_step {
			if
			:: STOPPED(s) && lost[MEM_OF(s)] -> moved = 0
			:: else ->
				assert(!STOPPED(s) && !STOPPED(n));
				fresh[n] = fresh[s]; lazy[n] = lazy[s]; dirty[n] = dirty[s]; locked[n] = 1; moved = 1;
				printf("copy of frame %d to frame %d, which replaces it\n", s, n)
			fi
		}
#ifdef COPIES_SUCCEED
	:: else -> moved = 0
#else
	:: d_step { moved = 0; printf("frame %d is not copied\n", s) }
#endif
	fi
}

/* migrate_vma_finalize(): the CPU gets entries for what is there now; what is not needed is freed. */
inline finalize() {
	d_step {
		x_v = 0;
		do
		:: x_v < NV ->
			if
			/* The reverse mapping of a merged page is not that of this process. */
			:: pte[x_v] == MIGRATING && pte_f[x_v] == s && !merged[s] ->
				if
				:: moved -> pte_f[x_v] = n
				:: else
				fi;
				mapped[pte_f[x_v]]++;
				if
				:: IS_SYS(pte_f[x_v]) -> pte[x_v] = PRESENT
				:: else -> pte[x_v] = PTE_OF_DEVICE
				fi
			:: else
			fi;
			x_v++
		:: else -> break
		od;
		x_v = 0;
		printf("finalize: frame %d is released, the CPU has frame %d\n", s, (moved -> n : s));
		isolated[s] = 0; locked[s] = 0;
		put(s);
		if
		:: n != 0 -> locked[n] = 0; put(n)
		:: else
		fi
	}
}

/* A hole gets a page of the device at once, if it still is one. */
inline fill_hole(v) {
	d_step {
		if
		:: n != 0 && (pte[v] == NONE || IS_ZERO(pte_f[v])) ->
			mapped[pte_f[v]] = mapped[pte_f[v]] - (pte[v] != NONE);
			pte[v] = PTE_OF_DEVICE; pte_f[v] = n; pte_w[v] = vm_w[v]; mapped[n] = 1; fresh[n] = zero & BIT(v); w = vm_w[v]; moved = 1;
			printf("page %d, where nothing was, has frame %d\n", v, n)
		:: else -> moved = 0
		fi
	}
}

/* Page v, which is read-only for the CPU, becomes writable: a copy, if others have it. With the mmap lock. */
inline break_cow(v, a) {
	d_step {
		took = 0;
		if
		:: pte[v] == PRESENT && mapped[pte_f[v]] == 1 && !isolated[pte_f[v]] && !merged[pte_f[v]] -> pte_w[v] = 1
		:: pte[v] == PRESENT && (mapped[pte_f[v]] > 1 || merged[pte_f[v]]) -> took = 1
		:: else
		fi
	}
	if
	:: took ->
		alloc_system(n);
		if
		:: n != 0 ->
			event(v, CLEAR, 0, a);
			d_step {
				if
				:: pte[v] == PRESENT && !pte_w[v] ->
					fresh[n] = fresh[pte_f[v]] & BIT(v);
					mapped[pte_f[v]]--; put(pte_f[v]);
					pte_f[v] = n; mapped[n] = 1; pte_w[v] = 1
				:: else -> put(n)
				fi;
				n = 0
			};
			event_end(v)
		:: else
		fi;
		took = 0
	:: else
	fi
}

/* SIGBUS, for page v: only where the device lost it. */
inline sigbus(v) { assert(dead[MEM_OF(pte_f[v])] && lost[MEM_OF(pte_f[v])]) }

/*
 * Begin and end of a scenario, for init. The first process has a page, with FULL every process has all pages. They are in
 * system memory, with ON_DEVICE on device 0, which has entries for them; with LAST_ON_DEVICE only the last one is there.
 */
#ifdef FULL
#define PAGES NV
#else
#define PAGES 1
#endif
#ifdef ON_DEVICE
#define BEGINS_ON_DEVICE(v) 1
#elif defined(LAST_ON_DEVICE)
#define BEGINS_ON_DEVICE(v) ((v) == PAGES - 1)
#else
#define BEGINS_ON_DEVICE(v) 0
#endif
/* Within a step. */
inline begin() {
	do
	:: i < PAGES ->
		vm[i] = 1; vm_w[i] = 1; users[MM(i)] = 1;
#ifdef HOLE
		zero = zero | BIT(i);
#ifdef COHERENT
		/* The kernel has one, too. */
		used[ZERO] = 1; mapped[ZERO] = PAGES + 1; fresh[ZERO] = zero;
		pte[i] = PRESENT; pte_f[i] = ZERO;
#endif
#else
		if
		:: BEGINS_ON_DEVICE(i) ->
			n = NSYS + 1;
			do
			:: used[n] -> n++
			:: else -> break
			od;
			pte[i] = DEVICE; pte_f[i] = n; entry[T(i, 0)] = n; entry_w[T(i, 0)] = 1; warm[T(i, 0)] = 1
		:: else -> pte[i] = PRESENT; pte_f[i] = i + 1
		fi;
#ifdef PINNED
		pinned[pte_f[i]] = 1;
#endif
		pte_w[i] = 1; used[pte_f[i]] = 1; mapped[pte_f[i]] = 1; fresh[pte_f[i]] = BIT(i);
#endif
		i++
	:: else -> break
	od;
	i = 0; n = 0
}

/* Every page has what was written last, and nothing else is in use or locked. */
inline check_memory() {
	i = 0;
	do
	:: i < NV ->
		if
		:: pte[i] == PRESENT || pte[i] == DEVICE -> assert(fresh[pte_f[i]] & BIT(i))
		:: else -> assert(pte[i] == NONE && (!vm[i] || (zero & BIT(i))))
		fi;
		i++
	:: else -> break
	od;
	i = 1;
	do
	:: i < NF -> assert(used[i] == (mapped[i] > 0) && !isolated[i] && !locked[i] && CAN_FREE(i)); i++
	:: else -> break
	od;
	i = 0;
	do
	/* An entry is a copy of the CPU's. */
	:: i < NV * DEVICES ->
		assert(busy[i] == 0 && (entry[i] == 0 || ((pte[i / DEVICES] == PRESENT || pte[i / DEVICES] == DEVICE) && entry[i] == pte_f[i / DEVICES])));
		assert(!entry_w[i] || pte_w[i / DEVICES]);
		i++
	:: else -> break
	od;
	i = 0;
	do
	:: i < NMI -> assert(changing[i] == 0); i++
	:: else -> break
	od;
	i = 0
}
