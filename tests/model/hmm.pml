/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The protocol of Documentation/faultless.rst, for SPIN: a number of address spaces with NP pages each, devices with a mirror
 * of each address space, and what happens to them, one step at a time.
 *
 * A step is what others see at once: what a page table lock, a table lock or an atomic instruction makes one. Between two
 * steps of a process anything may happen. What is assumed of the core is modelled as it is in mm/: notifiers by their
 * sequence, migration entries, folio locks and references, the mmap lock.
 *
 * Contents are not stored. For each frame there is a bit for each page of a process whose last write it has: what others
 * read must have that bit.
 *
 * OFF is a rule that is broken, by its name in Documentation/faultless.rst or below. SCENARIO starts processes. Both come
 * from tests/model/run.
 */
#include "scenario.pml"
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
#define NACT 4
#define NV (SPACES * NP)
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
#define NDEV 2
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
/* Whether frame f, which is no frame of the system, is in the memory of device d. */
#define HAS(d, f) (MEM_OF(f) == MEM(d))

mtype = { CLEAR, MIGRATE, PROTECT, UNMAP };
mtype = { NONE, PRESENT, MIGRATING, DEVICE };
mtype = {
	EVERY_RULE_HOLDS,
	/* The holes of faultless.rst. */
	H1, H2, H3, H4, H5, H6, H9, H10, H11, H12, H13, H14, H15, H16, H17,
	/* A range fault is installed although an invalidation has begun since (rule 1). */
	RULE1,
	/* An invalidation ends before the device has stopped using the entry (rule 2). */
	RULE2,
	/* An invalidation that finds no entry does not wait for flushes of others (rule 2). */
	OTHERS,
	/* Own events remove the entries, too, as in other managers: right, but not faultless (rule 5). */
	RULE5,
	/* The table lock is held across migrate_vma_setup() (rule 3). */
	RULE3,
	/* The device holds a reference of each page that it has mapped (rule 4). */
	RULE4,
	/* A device write does not break copy on write (rule 6). */
	RULE6,
	/* After a pull, the device that had the page keeps its entry. */
	PULL,
	/* A pull gives the destination its entry before the source has lost its own. */
	SOURCE_FIRST,
	/* An unplug does not wait for steps that bring pages to the device. */
	ARRIVALS,
	/* An unplug does not wait for steps that copy from the device. */
	DEPARTURES,
	/* A fault of a device that was unplugged is served. */
	FORGET,
	/* A CPU fault that finds its page locked ends in SIGBUS (rule 7). */
	RULE7,
	/* A migration takes write access from pages that cannot move (rule 12). */
	RULE12,
	/* Who works on an address space does not keep it from its end. */
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
/* Ghost: somebody has taken write access, and nobody has it until he gives it back. */
bit frozen[NV];
/* Who keeps an address space from its end: its own process, and each that works on it. */
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
bit pinned[NF];		/* for good, by somebody who is not modelled */

/* Ghost: of each frame the pages whose last write it has; pages that have to be zero; those that MADV_FREE gave away. */
byte fresh[NF];
byte zero;
byte given;

/* The tables of the devices. */
byte entry[NV * DEVICES];
bit entry_w[NV * DEVICES];
/* Who is about to switch the entry, plus 1. */
byte mark[NV * DEVICES];
/* For each mirror: invalidations that are not over, and changes that are not flushed. */
byte invalidating[NMI];
byte changing[NMI];
/* Whether an invalidation has begun since the process began to read. */
bit collided[NACT * NMI];
/* Somebody has the table lock who waits with it, which only happens with a broken rule: else each use is a step. */
bit table_locked[NMI];
/* The engine of each mirror: its translations, and the page that it is accessing, plus 1. */
byte tlb[NV * DEVICES];
bit tlb_w[NV * DEVICES];
byte busy[NMI];
/* Where the device has read and written before. */
bit warm[NV * DEVICES];
bit warm_w[NV * DEVICES];
/* Nothing but migrations happens in this scenario; nor can any page move. */
bit quiet;
bit still;
/* Unplug: no page may be brought to the device; steps that bring some, and that take some away; its memory cannot be read. */
bit closed[DEVICES];
byte arriving[DEVICES];
byte departing[DEVICES];
bit dead[DEVICES];
/* The copy of a page that was to be saved has failed: such pages stay, and are lost with the device. */
bit lost[DEVICES];

/* Processes that have not ended. */
byte left;

#define BIT(v) (1 << (v))
#define STOPPED(f) (!IS_SYS(f) && dead[MEM_OF(f)])
#define COLLIDED(a, mi) collided[(a) * NMI + (mi)]
#define LOCALS byte x_d = 0, x_m = 0, x_mi = 0, x_t = 0, x_i = 0, x_v = 0, s = 0, n = 0; bit x_flush = 0, moved = 0, w = 0, took = 0, hole = 0, refused = 0, x_alive = 0

/* Memory */

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

/* Frees frame f if nobody has it. Within a step. */
inline put(f) {
	if
	:: mapped[f] == 0 && !isolated[f] -> used[f] = 0; locked[f] = 0; fresh[f] = 0; dirty[f] = 0; lazy[f] = 0; merged[f] = 0
	:: else
	fi
}

/* Page v has new contents, in frame f or, with 0, none. Within a step. */
inline written(v, f) {
	x_i = 1;
	do
	:: x_i < NF -> fresh[x_i] = fresh[x_i] & (255 - BIT(v)); x_i++
	:: else -> break
	od;
	x_i = 0;
	given = given & (255 - BIT(v));
	if
	/* Who else has the frame has lost what was there. */
	:: f != 0 -> fresh[f] = BIT(v); zero = zero & (255 - BIT(v))
	:: else -> zero = zero | BIT(v)
	fi
}

/* The process has nothing at v any more. Within a step. */
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
		!mm_writer[m] -> mm_readers[m]++;
		alive = users[m] > 0 || off == MMGET;
		users[m] = users[m] + alive
	}
}
inline mmap_read(m) { d_step { !mm_writer[m] -> mm_readers[m]++ } }
inline mmap_read_unlock(m) { mm_readers[m]-- }
inline mmap_write(m) { d_step { !mm_writer[m] && mm_readers[m] == 0 -> mm_writer[m] = 1 } }
inline mmap_write_unlock(m) { mm_writer[m] = 0 }

/* Mirrors */

/* Waits until device d uses nothing of page v that it should not. Ends a change. */
inline flush(v, d) {
	d_step { printf("device %d: flush of page %d begins\n", d, v); tlb[T(v, d)] = 0; tlb_w[T(v, d)] = 0 }
	(busy[MI(MM(v), d)] != (v) + 1 || off == RULE2);
	d_step { changing[MI(MM(v), d)]--; printf("device %d: flush of page %d is over\n", d, v) }
}

/* An entry goes. What the device may have written is dirty. Within a step. */
inline retire(t) {
	if
	:: entry_w[t] && IS_SYS(entry[t]) && off != H16 -> dirty[entry[t]] = 1
	:: else
	fi
}

/* Whether the event of a, named or not, leaves the entry alone. */
#define KEEPS(t, named, a) ((named) && off != RULE5 && (mark[t] == (a) + 1 || (off == H9 && mark[t] == 0)))

/* An event about page v: mmu_notifier_invalidate_range_start(). named: it carries what makes it its migration's own. */
inline event(v, reason, named, a) {
	x_d = 0;
	do
	:: x_d < DEVICES && !table_locked[MI(MM(v), x_d)] ->
		d_step {
			x_mi = MI(MM(v), x_d);
			x_t = T(v, x_d);
			invalidating[x_mi]++;
			x_i = 0;
			do
			:: x_i < NACT -> COLLIDED(x_i, x_mi) = 1; x_i++
			:: else -> break
			od;
			x_i = 0;
			x_flush = changing[x_mi] > 0 && off != OTHERS;
			printf("%d: event %e about page %d, mirror of device %d, which has frame %d\n", a, reason, v, x_d, entry[x_t]);
			if
			:: KEEPS(x_t, named, a) -> printf("device %d: keeps its entry\n", x_d)
			:: off == H10 && reason == MIGRATE && mark[x_t] == 0
			:: else ->
				if
				:: off != H3 -> mark[x_t] = 0
				:: else
				fi;
				if
				:: reason == PROTECT && entry_w[x_t] -> retire(x_t); entry_w[x_t] = 0; x_flush = 1
				:: reason != PROTECT && entry[x_t] != 0 -> retire(x_t); entry[x_t] = 0; entry_w[x_t] = 0; x_flush = 1
				:: else
				fi
			fi;
			if
			:: x_flush -> changing[x_mi]++
			:: else
			fi;
			x_mi = 0; x_t = 0
		};
		if
		:: x_flush -> flush(v, x_d)
		:: else
		fi;
		x_d++
	:: x_d == DEVICES -> break
	od;
	atomic { x_d = 0; x_flush = 0 }
}

inline event_end(v) {
	d_step {
		x_d = 0;
		do
		:: x_d < DEVICES -> invalidating[MI(MM(v), x_d)]--; x_d++
		:: else -> break
		od;
		x_d = 0
	}
}

#define READ_BEGIN(a, mi) d_step { invalidating[mi] == 0 -> COLLIDED(a, mi) = 0 }

/* Migration */

/* Marks the entry of page v for a, unless another one holds it, and makes it read-only. Within a step. */
inline announce(v, d, a) {
	if
	:: mark[T(v, d)] == 0 || off == H13 -> mark[T(v, d)] = (a) + 1
	:: else
	fi;
	printf("%d: announced: page %d of device %d, marked by %d\n", a, v, d, mark[T(v, d)] - 1);
	x_flush = entry_w[T(v, d)] && off != H1;
	if
	:: x_flush -> retire(T(v, d)); entry_w[T(v, d)] = 0; changing[MI(MM(v), d)]++
	:: else
	fi
}

/* Switches the entry of page v, which a has moved to n. */
inline switch_entry(v, d, a, to, write) {
	d_step {
		x_flush = changing[MI(MM(v), d)] > 0 && off != OTHERS;
		if
		:: mark[T(v, d)] == (a) + 1 ->
			entry[T(v, d)] = to; entry_w[T(v, d)] = write; x_flush = 1;
			printf("%d: switches the entry of page %d of device %d to frame %d\n", a, v, d, to)
		:: else ->
			/* The mark was lost. What is read-only may be the source: alone, this makes up for a broken H13. */
			printf("%d: does not switch page %d of device %d\n", a, v, d);
			if
			:: entry[T(v, d)] != 0 && !entry_w[T(v, d)] && off != H13 -> entry[T(v, d)] = 0; x_flush = 1
			:: else
			fi
		fi;
		if
		:: x_flush -> changing[MI(MM(v), d)]++
		:: else
		fi
	}
	if
	:: x_flush -> flush(v, d); x_flush = 0
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
	atomic { x_v = 0; took = took && mapped[s] == 0 }
}

/* Frame s, which is locked, leaves the page tables: v's, or by the reverse mapping all. */
inline unmap(v, a) {
	d_step {
		took = 0;
		if
		:: mapped[s] == 1 && pte_f[v] == s && (pte[v] == PRESENT || pte[v] == DEVICE) && !(off == RULE4 && entry[T(v, 0)] == s) ->
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
		:: ((system && pte[v] == PRESENT) || (!(system) && pte[v] == DEVICE && HAS(d, pte_f[v]))) && !locked[pte_f[v]] && (!merged[pte_f[v]] || off == H17) && !pinned[pte_f[v]] ->
			s = pte_f[v]; locked[s] = 1; isolated[s] = 1
		:: system && pte[v] == NONE && vm[v] -> hole = 1
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
	:: d_step { moved = 0; printf("frame %d is not copied\n", s) }
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
				:: else -> pte[x_v] = DEVICE
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
		:: n != 0 && pte[v] == NONE ->
			pte[v] = DEVICE; pte_f[v] = n; pte_w[v] = vm_w[v]; mapped[n] = 1; fresh[n] = zero & BIT(v); w = vm_w[v]; moved = 1
		:: else -> moved = 0
		fi
	}
}

/* Migrates page v to device d, or from there to system memory. */
inline migrate(v, d, to_device, a) {
	do
	:: READ_BEGIN(a, MI(MM(v), d));
		mmget_and_read(MM(v), x_alive);
		d_step {
			if
			:: off == H11 -> mm_readers[MM(v)]--
			:: else
			fi;
			if
			:: COLLIDED(a, MI(MM(v), d)) && off != H4 -> mm_readers[MM(v)] = mm_readers[MM(v)] - (off != H11); users[MM(v)] = users[MM(v)] - x_alive; took = 0
			:: else ->
				COLLIDED(a, MI(MM(v), d)) = 1; took = 1;
				if
				:: (to_device && closed[MEM(d)]) || !x_alive || (pinned[pte_f[v]] && off != RULE12) -> refused = 1
				:: else ->
					announce(v, d, a);
					if
					:: to_device -> arriving[MEM(d)]++
					:: else -> departing[MEM(d)]++
					fi
				fi
			fi
		};
		if
		:: took -> break
		:: else
		fi
	od;
	if
	:: x_flush -> flush(v, d); x_flush = 0
	:: else
	fi;
	if
	:: !refused ->
		table_locked[MI(MM(v), d)] = (off == RULE3);
		event(v, MIGRATE, 1, a);
		isolate(v, to_device, d, a);
		/* What nobody else uses moves. */
		assert(!quiet || s == 0 || took);
		event_end(v)
	:: else
	fi;
	if
	:: s != 0 || hole ->
		if
		:: to_device -> alloc_device(n, d)
		:: else -> alloc_system(n)
		fi;
		if
		:: hole -> fill_hole(v)
		:: else -> copy()
		fi;
		if
		:: off == H15 && s != 0 -> finalize()
		:: else
		fi;
		if
		:: moved || (off == H5 && n != 0 && s != 0) || (off == H6 && n != 0 && hole) ->
			switch_entry(v, d, a, n, w);
			if
			:: !to_device && moved -> dirty[n] = 1
			:: else
			fi
		:: else
		fi;
		if
		:: off != H15 && s != 0 -> finalize()
		:: hole && n != 0 && !moved -> d_step { put(n) }
		:: else
		fi
	:: else
	fi;
	d_step {
		if
		:: mark[T(v, d)] == (a) + 1 -> mark[T(v, d)] = 0
		:: else
		fi;
		if
		:: refused -> refused = 0
		:: !refused && to_device -> arriving[MEM(d)]--
		:: else -> departing[MEM(d)]--
		fi;
		s = 0; n = 0; moved = 0; w = 0; took = 0; hole = 0;
		users[MM(v)] = users[MM(v)] - x_alive; x_alive = 0;
		mm_readers[MM(v)] = mm_readers[MM(v)] - (off != H11)
	}
}

/* SIGBUS, for page v: only where the device lost it. */
inline sigbus(v) { assert(dead[MEM_OF(pte_f[v])] && lost[MEM_OF(pte_f[v])]) }

/* The CPU touches page v, which a device's memory has. With the mmap lock. */
inline cpu_fault(v, a) {
	d_step {
		s = 0;
		if
		:: pte[v] == DEVICE && dead[MEM_OF(pte_f[v])] -> sigbus(v)
		:: pte[v] == DEVICE && !locked[pte_f[v]] && !dead[MEM_OF(pte_f[v])] ->
			s = pte_f[v]; locked[s] = 1; isolated[s] = 1; departing[MEM_OF(s)]++
		/* Somebody else works on it: the CPU tries again. */
		:: pte[v] == DEVICE && locked[pte_f[v]] && !dead[MEM_OF(pte_f[v])] && off == RULE7 -> sigbus(v)
		:: else
		fi
	}
	if
	:: s != 0 ->
		/* Mirrors that can be had at once, and have an entry, keep it. Nothing may be waited for. */
		x_m = 0;
		do
		:: x_m < DEVICES ->
			d_step {
				if
				:: HAS(x_m, s) && entry[T(v, x_m)] != 0 && (mark[T(v, x_m)] == 0 || off == H13) -> announce(v, x_m, a)
				:: else -> x_flush = 0
				fi
			};
			if
			:: x_flush -> flush(v, x_m); x_flush = 0
			:: else
			fi;
			x_m++
		:: else -> break
		od;
		event(v, MIGRATE, 1, a);
		unmap(v, a);
		event_end(v);
		alloc_system(n);
		copy();
		x_m = 0;
		do
		:: x_m < DEVICES ->
			if
			:: moved && HAS(x_m, s) -> switch_entry(v, x_m, a, n, w && off == H14)
			:: else
			fi;
			x_m++
		:: else -> break
		od;
		x_m = 0;
		d_step {
			if
			:: moved -> dirty[n] = 1
			:: else
			fi;
			do
			:: x_m < DEVICES ->
				if
				:: mark[T(v, x_m)] == (a) + 1 -> mark[T(v, x_m)] = 0
				:: else
				fi;
				x_m++
			:: else -> break
			od;
			x_m = 0
		};
		finalize();
		d_step { departing[MEM_OF(s)]--; s = 0; n = 0; moved = 0; w = 0; took = 0 }
	:: else
	fi
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

/* A fault of device d at page v. */
inline device_fault(v, d, write, a) {
	READ_BEGIN(a, MI(MM(v), d));
	mmget_and_read(MM(v), x_alive);
	/* hmm_range_fault(), and the faults that it causes. */
	if
	:: !x_alive || !vm[v] || (write && !vm_w[v])
	:: x_alive && vm[v] && pte[v] == NONE -> populate(v)
	:: x_alive && pte[v] == DEVICE && !HAS(d, pte_f[v]) -> cpu_fault(v, a)
	:: x_alive && pte[v] == DEVICE && HAS(d, pte_f[v]) && write && !pte_w[v] ->
		d_step {
			if
			:: pte[v] == DEVICE && mapped[pte_f[v]] == 1 && vm_w[v] -> pte_w[v] = 1; took = 0
			:: else -> took = 1
			fi
		};
		if
		:: took -> cpu_fault(v, a); took = 0
		:: else
		fi
	:: x_alive && write && vm_w[v] && pte[v] == PRESENT && !pte_w[v] && off != RULE6 -> break_cow(v, a)
	:: else
	fi;
	d_step {
		if
		:: x_alive && vm[v] && (pte[v] == PRESENT || (pte[v] == DEVICE && HAS(d, pte_f[v]))) && (!write || (vm_w[v] && (pte_w[v] || off == RULE6))) ->
			s = pte_f[v]; w = pte_w[v] || (write && off == RULE6)
		:: else
		fi;
		users[MM(v)] = users[MM(v)] - x_alive; x_alive = 0;
		mm_readers[MM(v)]--
	};
	/* Under the table lock. */
	d_step {
		if
		:: s != 0 && (!COLLIDED(a, MI(MM(v), d)) || off == RULE1) && (mark[T(v, d)] == 0 || off == H2) && (!closed[MEM(d)] || off == FORGET) ->
			entry[T(v, d)] = s; entry_w[T(v, d)] = w; warm[T(v, d)] = 1; warm_w[T(v, d)] = w && still;
			printf("%d: device %d gets frame %d for page %d\n", a, d, s, v)
		:: else
		fi;
		s = 0; w = 0; COLLIDED(a, MI(MM(v), d)) = 1
	}
}

/* Processes of a scenario. a is a number of their own. */

/* The engine of device d, at page v. */
proctype engine(byte a, v, d) {
	LOCALS;
	byte f = 0, ops = 0;
	bit write = 0, hit = 0;

	do
	:: ops < OPS && vm[v] ->
		ops++;
		if
		:: write = 0
		:: write = 1
		fi;
		/* From the TLB, or the table. */
		d_step {
			if
			:: tlb[T(v, d)] != 0 && (!write || tlb_w[T(v, d)]) -> f = tlb[T(v, d)]; hit = 1
			:: else ->
				if
				:: entry[T(v, d)] != 0 && (!write || entry_w[T(v, d)]) ->
					f = entry[T(v, d)]; hit = 1;
					tlb[T(v, d)] = f; tlb_w[T(v, d)] = entry_w[T(v, d)]
				:: else
				fi
			fi;
			if
			:: hit -> assert(!dead[MEM(d)]); busy[MI(MM(v), d)] = v + 1; printf("%d: device %d begins to access frame %d for page %d\n", a, d, f, v)
			:: else
			fi
		};
		if
		:: hit ->
			d_step {
				if
				:: write -> assert(!frozen[v]); written(v, f); printf("%d: device %d writes frame %d\n", a, d, f)
				:: else -> printf("%d: device %d reads frame %d\n", a, d, f); assert(fresh[f] & BIT(v))
				fi;
				busy[MI(MM(v), d)] = 0; f = 0; hit = 0
			}
		:: else ->
			assert(!quiet || write || !warm[T(v, d)]);
			assert(!still || !write || !warm_w[T(v, d)]);
			device_fault(v, d, write, a)
		fi
	:: else -> break
	od;
	left--
}

/* A thread of the process. */
proctype cpu(byte a, v) {
	LOCALS;
	byte ops = 0;
	bit write = 0;

	do
	:: ops < OPS && vm[v] ->
		ops++;
		if
		:: write = 0
		:: write = 1
		fi;
		d_step {
			took = 0;
			if
			:: vm[v] && pte[v] == PRESENT && (!write || pte_w[v]) ->
				if
				:: write -> written(v, pte_f[v]); dirty[pte_f[v]] = 1; printf("%d: CPU writes frame %d for page %d\n", a, pte_f[v], v)
				:: else -> printf("%d: CPU reads frame %d for page %d\n", a, pte_f[v], v); assert(fresh[pte_f[v]] & BIT(v))
				fi;
				took = 1
			:: else
			fi
		};
		if
		:: took -> took = 0
		:: else ->
			mmap_read(MM(v));
			if
			:: !vm[v] || (write && !vm_w[v])
			:: vm[v] && pte[v] == NONE -> populate(v)
			:: vm[v] && pte[v] == DEVICE -> cpu_fault(v, a)
			:: write && vm_w[v] && pte[v] == PRESENT && !pte_w[v] -> break_cow(v, a)
			:: else
			fi;
			mmap_read_unlock(MM(v))
		fi
	:: else -> break
	od;
	left--
}

proctype mover(byte a, v, d) {
	LOCALS;
	if
	:: migrate(v, d, 1, a)
	:: migrate(v, d, 0, a)
	fi;
	left--
}

proctype round_trip(byte a, v, d) {
	LOCALS;
	migrate(v, d, 1, a);
	migrate(v, d, 0, a);
	left--
}

/* Evicts page v, if device d has it: plain events, entries go. */
inline evict_page(v, d, a) {
	d_step { !mm_writer[MM(v)] -> mm_readers[MM(v)]++; departing[MEM(d)]++ }
	if
	:: off == H12 -> d_step { announce(v, d, a); x_flush = 0; changing[MI(MM(v), d)] = 0 }; event(v, CLEAR, 1, a)
	:: else -> event(v, CLEAR, 0, a)
	fi;
	isolate(v, 0, d, a);
	event_end(v);
	if
	:: s != 0 ->
		alloc_system(n);
		copy();
		d_step {
			if
			:: !moved && closed[d] -> lost[d] = 1
			:: else
			fi
		};
		finalize()
	:: else
	fi;
	d_step { s = 0; n = 0; moved = 0; w = 0; took = 0; departing[MEM(d)]--; mm_readers[MM(v)]-- }
}

proctype evict(byte a, v, d) {
	LOCALS;
	evict_page(v, d, a);
	left--
}

/* All mirrors of device d lose their entries. */
inline forget(d) {
	x_v = 0;
	do
	:: x_v < NV ->
		d_step {
			if
			:: entry[T(x_v, d)] != 0 -> retire(T(x_v, d))
			:: else
			fi;
			entry[T(x_v, d)] = 0; entry_w[T(x_v, d)] = 0; mark[T(x_v, d)] = 0; changing[MI(MM(x_v), d)]++
		};
		flush(x_v, d);
		x_v++
	:: else -> break
	od;
	x_v = 0
}

/* Memory::unplug() of device d. Then its driver stops it: only what could not be copied is in its memory. */
proctype unplug(byte a, d) {
	LOCALS;
	byte f = 0, rounds = 0;
	closed[d] = 1;
	forget(d);
	(arriving[d] == 0 || off == ARRIVALS);
	do
	:: rounds < 4 ->
		rounds++;
		(departing[d] == 0 || off == DEPARTURES);
		f = 0;
		do
		:: f < NV ->
			if
			:: pte[f] == DEVICE && HAS(d, pte_f[f]) -> evict_page(f, d, a)
			:: else
			fi;
			f++
		:: else -> break
		od
	:: else -> break
	od;
	forget(d);
	d_step {
		dead[d] = 1;
		printf("%d: device %d is gone\n", a, d);
		f = NSYS + 1 + d * NDEV;
		do
		:: f < NSYS + 1 + (d + 1) * NDEV -> assert(!used[f] || lost[d]); f++
		:: else -> break
		od
	};
	left--
}

/* Moves page v from the memory of device from to that of device d, directly. */
proctype puller(byte a, v, from, d) {
	LOCALS;
	do
	:: READ_BEGIN(a, MI(MM(v), d));
		mmap_read(MM(v));
		d_step {
			if
			:: COLLIDED(a, MI(MM(v), d)) -> mm_readers[MM(v)]--; took = 0
			:: else -> COLLIDED(a, MI(MM(v), d)) = 1; announce(v, d, a); took = 1; arriving[d]++; departing[from]++
			fi
		};
		if
		:: took -> break
		:: else
		fi
	od;
	if
	:: x_flush -> flush(v, d); x_flush = 0
	:: else
	fi;
	/* The source goes on reading, if its mirror can be had at once. */
	d_step {
		if
		:: entry[T(v, from)] != 0 && mark[T(v, from)] == 0 -> announce(v, from, a)
		:: else -> x_flush = 0
		fi
	};
	if
	:: x_flush -> flush(v, from); x_flush = 0
	:: else
	fi;
	event(v, MIGRATE, 1, a);
	isolate(v, 0, from, a);
	event_end(v);
	if
	:: s != 0 ->
		alloc_device(n, d);
		copy();
		if
		:: moved ->
			/* First the source's entries go: what this device writes, that one must not read as it was. */
			if
			:: off != PULL && off != SOURCE_FIRST -> switch_entry(v, from, a, 0, 0)
			:: else
			fi;
			switch_entry(v, d, a, n, w);
			if
			:: off == SOURCE_FIRST -> switch_entry(v, from, a, 0, 0)
			:: else
			fi
		:: else
		fi;
		finalize()
	:: else
	fi;
	d_step {
		if
		:: mark[T(v, d)] == a + 1 -> mark[T(v, d)] = 0
		:: else
		fi;
		if
		:: mark[T(v, from)] == a + 1 -> mark[T(v, from)] = 0
		:: else
		fi;
		arriving[d]--; departing[from]--;
		s = 0; n = 0; moved = 0; w = 0; took = 0;
		mm_readers[MM(v)]--
	};
	left--
}

/* mremap(): page v becomes page u. */
proctype mremap(byte a, v, u) {
	LOCALS;
	mmap_write(MM(v));
	event(v, UNMAP, 0, a);
	d_step {
		vm[u] = vm[v]; vm_w[u] = vm_w[v]; vm[v] = 0; vm_w[v] = 0;
		pte[u] = pte[v]; pte_f[u] = pte_f[v]; pte_w[u] = pte_w[v];
		pte[v] = NONE; pte_f[v] = 0; pte_w[v] = 0;
		x_i = 1;
		do
		:: x_i < NF ->
			if
			:: fresh[x_i] & BIT(v) -> fresh[x_i] = (fresh[x_i] & (255 - BIT(v))) | BIT(u)
			:: else
			fi;
			x_i++
		:: else -> break
		od;
		x_i = 0;
		if
		:: zero & BIT(v) -> zero = (zero & (255 - BIT(v))) | BIT(u)
		:: else
		fi;
		printf("%d: page %d is page %d now\n", a, v, u)
	};
	event_end(v);
	mmap_write_unlock(MM(v));
	left--
}

/* madvise(MADV_DONTNEED) */
proctype dontneed(byte a, v) {
	LOCALS;
	mmap_read(MM(v));
	event(v, CLEAR, 0, a);
	d_step { zap(v); written(v, 0) };
	event_end(v);
	mmap_read_unlock(MM(v));
	left--
}

/* madvise(MADV_FREE), and reclaim, which drops what was not written since. */
proctype madv_free(byte a, v) {
	LOCALS;
	mmap_read(MM(v));
	event(v, CLEAR, 0, a);
	d_step {
		if
		:: pte[v] == PRESENT && mapped[pte_f[v]] == 1 && !locked[pte_f[v]] -> lazy[pte_f[v]] = 1; dirty[pte_f[v]] = 0; given = given | BIT(v)
		:: else
		fi
	};
	event_end(v);
	mmap_read_unlock(MM(v));
	left--
}
proctype reclaim(byte a, v) {
	LOCALS;
	event(v, CLEAR, 0, a);
	d_step {
		if
		:: pte[v] == PRESENT && lazy[pte_f[v]] && !dirty[pte_f[v]] && !locked[pte_f[v]] && mapped[pte_f[v]] == 1 ->
			zap(v);
			/* What nobody has written since may be zero. */
			zero = zero | (given & BIT(v))
		:: else
		fi
	};
	event_end(v);
	left--
}

proctype unmapper(byte a, v) {
	LOCALS;
	mmap_write(MM(v));
	event(v, UNMAP, 0, a);
	d_step { zap(v); vm[v] = 0; vm_w[v] = 0; written(v, 0); zero = zero & (255 - BIT(v)) };
	event_end(v);
	mmap_write_unlock(MM(v));
	left--
}

/* The process ends: nobody works on its address space any more, nor begins to. */
inline exit_mmap(m, a) {
	users[m]--;
	(users[m] == 0 || off == MMGET);
	do
	:: f < NP -> event(V(m, f), UNMAP, 0, a); event_end(V(m, f)); f++
	:: else -> break
	od;
	f = 0;
	mmap_read(m);
	do
	:: f < NP ->
		event(V(m, f), UNMAP, 0, a);
		d_step { zap(V(m, f)); written(V(m, f), 0); zero = zero & (255 - BIT(V(m, f))) };
		event_end(V(m, f));
		f++
	:: else -> break
	od;
	mmap_read_unlock(m);
	mmap_write(m);
	d_step {
		f = 0;
		do
		:: f < NP -> assert(pte[V(m, f)] == NONE); vm[V(m, f)] = 0; vm_w[V(m, f)] = 0; f++
		:: else -> break
		od;
		printf("%d: address space %d is gone\n", a, m)
	};
	mmap_write_unlock(m)
}

proctype exit(byte a, m) {
	LOCALS;
	byte f = 0;
	exit_mmap(m, a);
	left--
}

proctype protect(byte a, v) {
	LOCALS;
	mmap_write(MM(v));
	vm_w[v] = 0;
	event(v, PROTECT, 0, a);
	d_step { pte_w[v] = 0; frozen[v] = 1 };
	event_end(v);
	d_step { frozen[v] = 0; vm_w[v] = 1 };
	mmap_write_unlock(MM(v));
	left--
}

/* Write access goes with the mmap lock held for reading, as by userfaultfd, and comes back by it. */
proctype write_protect(byte a, v) {
	LOCALS;
	mmap_read(MM(v));
	event(v, PROTECT, 0, a);
	d_step { pte_w[v] = 0; vm_w[v] = 0; frozen[v] = 1 };
	event_end(v);
	mmap_read_unlock(MM(v));
	d_step { frozen[v] = 0; vm_w[v] = 1 };
	left--
}

/* Page v is shared with page u of a new process. */
inline dup_mmap(v, u, a) {
	mmap_write(MM(v));
	event(v, PROTECT, 0, a);
	d_step {
		pte_w[v] = 0;
		vm[u] = 1; vm_w[u] = 1; users[MM(u)] = 1;
		if
		:: pte[v] == PRESENT || pte[v] == DEVICE -> pte[u] = pte[v]; pte_f[u] = pte_f[v]; mapped[pte_f[v]]++
		:: else
		fi;
		/* What v has, u has. */
		x_i = 1;
		do
		:: x_i < NF ->
			if
			:: fresh[x_i] & BIT(v) -> fresh[x_i] = fresh[x_i] | BIT(u)
			:: else
			fi;
			x_i++
		:: else -> break
		od;
		x_i = 0;
		if
		:: zero & BIT(v) -> zero = zero | BIT(u)
		:: else
		fi
	};
	event_end(v);
	mmap_write_unlock(MM(v))
}

proctype fork(byte a, v, u) {
	LOCALS;
	dup_mmap(v, u, a);
	left--
}

/* The parent ends after it. */
proctype fork_and_exit(byte a, v, u) {
	LOCALS;
	byte f = 0;
	dup_mmap(v, u, a);
	exit_mmap(MM(v), a);
	left--
}

/* KSM puts a merged page in the place of page v. */
proctype merge(byte a, v) {
	LOCALS;
	mmap_read(MM(v));
	event(v, CLEAR, 0, a);
	d_step {
		if
		:: pte[v] == PRESENT && mapped[pte_f[v]] == 1 && !locked[pte_f[v]] -> merged[pte_f[v]] = 1; pte_w[v] = 0
		:: else
		fi
	};
	event_end(v);
	mmap_read_unlock(MM(v));
	left--
}

init {
	byte i = 0;

	d_step {
		/* The first process has a page; others come by fork. */
		vm[0] = 1; vm_w[0] = 1; users[0] = 1;
#ifdef HOLE
		zero = BIT(0);
#else
#ifdef ON_DEVICE
		/* Device 0 has it, and an entry for it. */
		pte[0] = DEVICE; pte_f[0] = NSYS + 1; entry[0] = NSYS + 1; entry_w[0] = 1; warm[0] = 1;
#else
		pte[0] = PRESENT; pte_f[0] = 1;
#endif
#ifdef PINNED
		pinned[1] = 1;
#endif
		pte_w[0] = 1; used[pte_f[0]] = 1; mapped[pte_f[0]] = 1; fresh[pte_f[0]] = BIT(0);
#endif
		do
		:: i < NACT * NMI -> collided[i] = 1; i++
		:: else -> break
		od;
		i = 0
	};
	atomic {
		SCENARIO
	};
	left == 0;
	/* Every page has what was written last, and nothing else is in use, locked or marked. */
	d_step {
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
		:: i < NF -> assert(used[i] == (mapped[i] > 0) && !isolated[i] && !locked[i]); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NV * DEVICES -> assert(mark[i] == 0); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NMI -> assert(invalidating[i] == 0 && changing[i] == 0 && busy[i] == 0); i++
		:: else -> break
		od
	}
}
