/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Part of hmm.pml: frames, CPU page tables, the mmap lock, the core's migration code, and the
 * entries, TLBs and accesses of devices.
 *
 * Included after the mtype of the rules that the model can break, and before the model itself,
 * which defines event() and event_end() for the notifier's invalidate_range_start() and
 * invalidate_range_end().
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
/* Number of processes of a scenario, without init. */
#ifndef NACT
#define NACT 4
#endif
#define NV (SPACES * NP)
#define BIT(v) (1 << (v))
/* All pages except v. */
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
/* The entry of page v in the table of device d. */
#define T(v, d) ((v) * DEVICES + (d))

/* Frames: 0 is none, then those of the system, then those of each device. */
#ifndef NSYS
#define NSYS 3
#endif
#ifndef NDEV
#define NDEV 2
#endif
#define NF (1 + NSYS + MEMORIES * NDEV)
#define IS_SYS(f) ((f) <= NSYS)
/* With ONE_MEMORY the devices are mirrors of one device, with the same memory and owner. */
#ifdef ONE_MEMORY
#define MEMORIES 1
#define MEM(d) 0
#else
#define MEMORIES DEVICES
#define MEM(d) (d)
#endif
#define MEM_OF(f) (((f) - NSYS - 1) / NDEV)
/*
 * With COHERENT, CPUs access device memory in place. With HOLE, they have read the page before,
 * so that the zero page (frame 1) is mapped.
 */
#ifdef COHERENT
#define ZERO 1
#define IS_ZERO(f) ((f) == ZERO)
#define PTE_OF_DEVICE PRESENT
#else
#define IS_ZERO(f) 0
#define PTE_OF_DEVICE DEVICE
#endif
/* Whether frame f, which is not in system memory, is in the memory of device d. */
#define HAS(d, f) (MEM_OF(f) == MEM(d))

mtype = { CLEAR, MIGRATE, PROTECT, UNMAP };
mtype = { NONE, PRESENT, MIGRATING, DEVICE };
/* Rules of this part that can be broken. */
mtype = {
	EVERY_RULE_HOLDS,
	/*
	 * A device write after MADV_FREE does not dirty the page; merged pages are isolated: see
	 * faultless.rst.
	 */
	H16, H17,
	/* An invalidation ends before the device has stopped using the entry (rule 2). */
	RULE2,
	/* The device holds a reference to each page that it maps (rule 4). */
	RULE4,
	/* A device write does not break copy-on-write (rule 6). */
	RULE6,
	/* A migration uses an address space whose process has exited. */
	MMGET
};
mtype off = OFF;

/* The CPU page tables. */
mtype pte[NV] = NONE;
byte pte_f[NV];
bit pte_w[NV];
/* The page is mapped; it is writable. */
bit vm[NV];
bit vm_w[NV];
/*
 * Ghost: mprotect() or userfaultfd has removed write access, so that no device may write until
 * it is restored.
 */
bit frozen[NV];
/* mm_users: the process itself, and each process that uses its address space. */
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
byte refs[NF];		/* of sleeping CPU faults, with a broken rule */

/*
 * Ghost: for each frame, the pages whose last write it contains; pages that must be zero; pages
 * passed to MADV_FREE.
 */
PAGE_SET fresh[NF];
PAGE_SET zero;
PAGE_SET given;

/* The device page tables. */
byte entry[NV * DEVICES];
bit entry_w[NV * DEVICES];
/*
 * The mirror has joined the migration that has marked the entry, and gets write access back when it
 * leaves: the entry was writable when it joined.
 */
bit had_w[NV * DEVICES];
/* For each mirror, the number of changes that are not flushed. */
byte changing[NMI];
/*
 * The engines of each mirror: cached translations, and accesses in progress, by page.
 * Without TLB a translation is used for one access, which may take arbitrarily long, like a cached
 * one.
 */
#ifdef TLB
byte tlb[NV * DEVICES];
bit tlb_w[NV * DEVICES];
#endif
byte busy[NV * DEVICES];
/* Pages that the device has read or written before. */
bit warm[NV * DEVICES];
bit warm_w[NV * DEVICES];
/* This scenario has only migrations; in addition, no page can be migrated. */
bit quiet;
bit still;
/* The memory of the device is inaccessible. */
bit dead[DEVICES];
/* The copy of a page to be saved has failed: such pages stay, and are lost with the device. */
bit lost[DEVICES];

/* Number of processes that have not ended. */
byte left;

#define STOPPED(f) (!IS_SYS(f) && dead[MEM_OF(f)])
/* A reader waits behind a waiting writer, as in an rwsem. */
byte mm_writers_waiting[SPACES];
#define MAY_READ(m) (!mm_writer[m] && mm_writers_waiting[m] == 0)

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
	:: mapped[f] == 0 && !isolated[f] && refs[f] == 0 -> used[f] = 0; locked[f] = 0; fresh[f] = 0; dirty[f] = 0; lazy[f] = 0; merged[f] = 0
	:: else
	fi
}

/* Page v has new contents, in frame f, or zeros if f is 0. Within a step. */
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

/* Maps a new zeroed page at v, if none is mapped. */
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

/*
 * Takes the mmap lock if the process has not exited. Before, only a reference to the mm_struct
 * is held.
 */
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
	mm_writers_waiting[m]++;
	d_step { !mm_writer[m] && mm_readers[m] == 0 -> mm_writer[m] = 1; mm_writers_waiting[m]-- }
}

inline mmap_write_unlock(m) { mm_writer[m] = 0 }

/* Waits until device d has stopped using outdated translations of page v. Ends a change. */
#define IDLE(v, d) (busy[T(v, d)] == 0 || off == RULE2)
inline flush(v, d) {
#ifdef TLB
	d_step { printf("device %d: flush of page %d begins\n", d, v); tlb[T(v, d)] = 0; tlb_w[T(v, d)] = 0 }
	IDLE(v, d);
	d_step { changing[MI(MM(v), d)]--; printf("device %d: flush of page %d is over\n", d, v) }
#else
	d_step { IDLE(v, d) -> changing[MI(MM(v), d)]--; printf("device %d: flush of page %d is over\n", d, v) }
#endif
}

/* Removes an entry, and marks a page that the device may have written dirty. Within a step. */
inline retire(t) {
	if
	:: entry_w[t] && IS_SYS(entry[t]) && off != H16 -> dirty[entry[t]] = 1
	:: else
	fi
}

/* Unmaps frame s, which is locked, from all page tables, each with its own event. */
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
	atomic { x_v = 0; took = took && mapped[s] == 0 && refs[s] == 0 }
}

/* Unmaps frame s, which is locked, from v's page table, or from all by the reverse mapping. */
inline unmap(v, a) {
	d_step {
		took = 0;
		if
		:: mapped[s] == 1 && refs[s] == 0 && pte_f[v] == s && (pte[v] == PRESENT || pte[v] == DEVICE) && !(off == RULE4 && entry[T(v, 0)] == s) ->
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

/*
 * Isolates page v for a migration of a, from system memory or from device d: s is the frame, if
 * it can be migrated.
 */
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

/*
 * Copies s to n. The copy or the allocation of n may fail, and memory of a dead device cannot be
 * copied.
 */
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
	:: d_step { moved = 0; printf("frame %d is not copied\n", s) }
	fi
}

/*
 * migrate_vma_finalize(): restores the CPU entries, to the destination or the source, and frees
 * the other one.
 */
inline finalize(v) {
	d_step {
		STAGE(finalize, a, ALL_MIRRORS, NAME(a, v), v, 0);
		x_v = 0;
		do
		:: x_v < NV ->
			if
			/* The reverse mapping of a merged page does not belong to this process. */
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

/* Fills a hole with a page of the device immediately, if it is still a hole. */
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

/* Makes page v writable for the CPU, by a copy if the frame is shared. With the mmap lock. */
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

/* SIGBUS for page v, which is permitted only if the device has lost it. */
inline sigbus(v) { assert(dead[MEM_OF(pte_f[v])] && lost[MEM_OF(pte_f[v])]) }

/*
 * Begin and end of a scenario, for init. The first process has one page; with FULL each process
 * has all pages. They are in system memory; with ON_DEVICE on device 0, which has entries for
 * them; with LAST_ON_DEVICE only the last one is there. With READ_BY_ALL the last mirror has
 * entries, too.
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
		/* The kernel has a reference to the zero page, too. */
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
			pte[i] = DEVICE; pte_f[i] = n; entry[T(i, 0)] = n; entry_w[T(i, 0)] = 1; warm[T(i, 0)] = 1;
#ifdef READ_BY_ALL
			entry[T(i, DEVICES - 1)] = n; warm[T(i, DEVICES - 1)] = 1
#endif
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

/* Checks that each page contains its last write, and that no other frame is used or locked. */
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
	:: i < NF -> assert(used[i] == (mapped[i] > 0) && !isolated[i] && !locked[i] && refs[i] == 0); i++
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
