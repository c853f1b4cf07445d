/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The protocol of the engine, for SPIN: Documentation/faultless.rst, overlap.rst, and the windows
 * of internals.rst. A number of address spaces with NP pages each, devices with a mirror of each
 * address space, and the operations on them, one step at a time.
 *
 * A step is atomic for all other processes, because of a page table lock, a table lock, another
 * lock or an atomic instruction. Between two steps of a process any other process may run.
 *
 * Contents are not stored. Each frame has a bit for each page of a process, which is set if the
 * frame contains the last write to that page. A read must find this bit set.
 *
 * Sequences of notifiers are modelled like mm/mmu_notifier.c: an insertion during an invalidation
 * of the address space is deferred, and counts as invalidated; a removal waits for the end of all
 * invalidations; read_begin waits until no invalidation of the address space is active, if the
 * window was hit by one. mmap locks are fair: readers wait behind a waiting writer, and a trylock
 * then fails. As in do_swap_page(), a task that finds a device page locked waits with the mmap lock
 * held.
 *
 * OFF is a rule to break, by its name in Documentation/faultless.rst or below. SCENARIO starts
 * processes. tests/model/run generates both.
 */
#include "scenario.pml"
mtype = {
	/* The holes of faultless.rst. */
	H1, H2, H3, H4, H5, H6, H9, H10, H11, H12, H13, H14, H15,
	/*
	 * A commit restores write access before its flush, while another engine may still read
	 * the source.
	 */
	EARLY_WRITE,
	/*
	 * A mirror that has joined gets write access back after its own switch, while other
	 * mirrors may still read the source.
	 */
	JOINED_EARLY,
	/* A commit restores write access although an event has cleared the mark meanwhile. */
	LOST_WRITE,
	/* A read-only entry that has lost its mark is kept, although its page was migrated. */
	STAYS,
	/* A device fault is installed although its window was invalidated in between (rule 1). */
	RULE1,
	/* An invalidation that finds no entry does not wait for concurrent flushes (rule 2). */
	OTHERS,
	/* The callback waits for the flush of the first mirror only (rule 2). */
	FLUSH_FIRST,
	/*
	 * Own events keep entries of the zero page, so that CPUs can write the new page
	 * immediately.
	 */
	ZERO_PAGE,
	/*
	 * Own events remove the entries, too, as in other managers: correct, but not faultless
	 * (rule 5).
	 */
	RULE5,
	/* The table lock is held across migrate_vma_setup() (rule 3). */
	RULE3,
	/* A CPU fault on a locked page ends in SIGBUS (rule 7). */
	RULE7,
	/* A migration removes write access from pages that cannot be migrated (rule 12). */
	RULE12,

	/* Joined mirrors */

	/* Other mirrors of the process do not join a migration: correct, but not faultless. */
	JOIN,
	/* Joined mirrors keep write access. */
	JOIN_WRITE,
	/* The commit does not replace the entries of joined mirrors. */
	PULL,
	/* The migrating mirror commits before the joined ones have lost the source. */
	SOURCE_FIRST,
	/* The flush proof of the migrating mirror is used for the joined ones. */
	PROOF_OF_OTHER,
	/* The flush proof of another page is used for this one. */
	PROOF_OF_RANGE,
	/* A mirror is closed while it takes part in a migration. */
	CLOSED,
	/* A migration that is dropped after pages were migrated keeps the entries. */
	DROP,
	/* A migration that is dropped keeps its marks. */
	DROP_MARKS,

	/* Windows */

	/*
	 * A device fault creates its window, and calls read_begin, after it has read the CPU
	 * page table.
	 */
	WINDOW_LATE,
	/* A device fault assumes that a new window was not invalidated, without read_begin. */
	WINDOW_QUIET,
	/* A window is removed while a device fault uses it. */
	WINDOW_FAULT,
	/* A window is removed while a migration uses it. */
	WINDOW_MIGRATION,
	/* A device fault creates a window although the process has exited. */
	WINDOW_MMGET,
	/* A window is removed although it got a user while the worker looked for entries. */
	WINDOW_RECHECK,
	/* A window is removed while a mirror has entries in it. */
	WINDOW_ENTRIES,
	/* A window is freed without waiting for running callbacks. */
	WINDOW_FREE,
	/* A window is removed by its own callback. */
	WINDOW_CALLBACK,
	/* The sequence of a window is set after the entries are removed. */
	SEQUENCE_LAST,

	/* Overlapping steps */

	/*
	 * The announcement of the next block waits for invalidations while folios of this one
	 * are locked.
	 */
	OVERLAP_WAITS,
	/* The mmap lock is released and taken again between two blocks while folios are locked. */
	OVERLAP_RELOCKS,
	/*
	 * The announcement of the next block does not check its sequence, which is as old as
	 * that of the first block.
	 */
	OVERLAP_RETRY,

	/* Eviction, splits and unplug */

	/* Eviction waits for the mmap lock of another process. */
	EVICT_WAITS,
	/* A task that waits for a split keeps the mmap lock, the folio lock, or its reference. */
	SLEEP_MMAP, SLEEP_FOLIO, SLEEP_REFERENCE,
	/* The work item of a split waits for the mmap lock with the folio locked. */
	WORKER_ORDER,
	/* An unplug does not wait for steps that migrate pages to the device. */
	ARRIVALS,
	/* An unplug does not wait for steps that copy from the device. */
	DEPARTURES,
	/* A fault of an unplugged device is handled. */
	FORGET,
	/*
	 * Entries that are removed without an event are flushed without the table lock, so that
	 * their window can be removed before.
	 */
	FORGET_UNLOCKED
};
/* Number of pages of a window. */
#ifndef WP
#define WP 1
#endif
#define NW (NV / WP)
#define W(v) ((v) / WP)
/*
 * Stages that the modules report for tests/conformance/check.rs; see tests/model/run --replay. A
 * window is one of 512 pages there.
 */
#define STAGE(what, a, mirror, name, v, set) STAGE_LINE(stage what %d %d %d %d %d\n, a, mirror, name, (W(v) * 512 + (v) % WP), set)
#define STAGE_LINE(text, ...) printf(#text, __VA_ARGS__)
#define ALL_MIRRORS (-1)
#define NAME(a, v) ((a) * NV + (v) + 1)
#include "common.pml"

/* Number of accesses of each CPU. */
#ifndef CPU_OPS
#define CPU_OPS 1
#endif
#define SYSTEM DEVICES
#define COLLIDED(a, v) collided[(a) * NW + W(v)]
/*
 * With DROPS, migrations may be dropped in any state, and mirrors may fail to join. With WORKER,
 * the first fault of a CPU may find a huge page that must be split.
 */
#ifndef DROPS
#define DROPS 0
#endif
#ifndef WORKER
#define WORKER 0
#endif

/*
 * States of a window: none; insertion deferred until invalidations end; inserted; removal
 * deferred; to be freed.
 */
mtype = { ABSENT, DEFERRED, LIVE, LEAVING, REMOVED };
mtype win[NW] = ABSENT;
/* Number of device faults and migrations that use it; whether a worker looks for its entries. */
byte win_users[NW];
bit closing[NW];
/*
 * Its sequence is that of an invalidation in progress; for each process, whether it has changed
 * since read_begin.
 */
bit invalidated[NW];
bit collided[NACT * NW];
/*
 * For each address space: invalidations in progress; whether its sequence is odd, because one
 * has hit a window.
 */
byte events[SPACES];
bit odd[SPACES];

/* 1 + the migration that has marked the entry. */
byte mark[NV * DEVICES];
/* Open mirrors; the migrations of others that each has joined. */
bit opened[NMI];
byte joined[NMI];
/* The table lock is held over several steps. */
bit table_locked[NMI];

/* Number of tasks that wait for a split, by page. */
byte work[NV];

/*
 * Unplug: no page may be migrated to the device; number of steps that migrate to it, and from it.
 * Steps from it that begin after a wait has begun are counted separately.
 */
bit closed[DEVICES];
byte arriving[DEVICES];
byte departing[DEVICES * 2];
bit epoch[DEVICES];

#define LOCALS byte x_d = 0, x_t = 0, x_i = 0, x_v = 0, x_m = 0, x_pend = 0, ann = 0, s = 0, n = 0; bit moved = 0, w = 0, took = 0, hole = 0, x_flush = 0, x_own = 0, x_in = 0, x_alive = 0, x_locked = 0, x_drop = 0, x_arr = 0, x_dep = 0, x_e = 0, x_later = 0, x_split = 0

/* Windows */

/* Creates the window of page v, unless it exists. Within a step. */
inline window_make(v) {
	assert(users[MM(v)] > 0 || off == WINDOW_LATE || off == MMGET || off == WINDOW_MMGET);
	if
	:: win[W(v)] == ABSENT && events[MM(v)] == 0 -> win[W(v)] = LIVE; invalidated[W(v)] = 0
	:: win[W(v)] == ABSENT && events[MM(v)] > 0 && odd[MM(v)] -> win[W(v)] = DEFERRED; invalidated[W(v)] = 1
	:: win[W(v)] == ABSENT && events[MM(v)] > 0 && !odd[MM(v)] -> win[W(v)] = LIVE; odd[MM(v)] = 1; invalidated[W(v)] = 1
	:: else
	fi
}
/* A caller waits for a removal in progress. */
#define NOT_LEAVING(v) (win[W(v)] != LEAVING && win[W(v)] != REMOVED)
/* Whether a device fault, or a migration, counts as a user of its window. */
#define COUNTED(fault) (off != ((fault) -> WINDOW_FAULT : WINDOW_MIGRATION))
/*
 * Takes references to the address space, unless its process has exited, and to the window of v.
 * Without the mmap lock. late: does not make the window.
 */
inline enter(v, late, fault) {
	d_step {
		NOT_LEAVING(v) ->
		x_alive = users[MM(v)] > 0 || off == MMGET || ((fault) && off == WINDOW_MMGET);
		if
		:: x_alive ->
			if
			:: !(late) -> window_make(v)
			:: else
			fi;
			users[MM(v)]++; win_users[W(v)] = win_users[W(v)] + COUNTED(fault); closing[W(v)] = 0
		:: else
		fi
	}
}
#define READ_BEGIN(a, v) d_step { !invalidated[W(v)] || off == WINDOW_QUIET -> COLLIDED(a, v) = 0; STAGE(collect, a, ALL_MIRRORS, 0, v, 0) }

/* The first statement of a step with the table lock. */
#define UNLOCKED(v, d) (!table_locked[MI(MM(v), d)])
/* Whether mirror d has an entry or a mark in window x. With its table lock. */
inline window_holds(x, d) {
	UNLOCKED((x) * WP, d) ->
	x_v = (x) * WP;
	do
	:: x_v < ((x) + 1) * WP -> took = took && ((entry[T(x_v, d)] == 0 && mark[T(x_v, d)] == 0) || off == WINDOW_ENTRIES); x_v++
	:: else -> break
	od;
	x_v = 0
}
/* The worker: removes window x if it is unused and empty. */
inline window_remove(x) {
	d_step {
		took = (win[x] == LIVE || win[x] == DEFERRED) && win_users[x] == 0;
		closing[x] = took
	};
	if
	:: took ->
		/* Each mirror's table lock. */
		d_step { window_holds(x, 0) };
#if DEVICES > 1
		d_step { window_holds(x, 1) };
#endif
#if DEVICES > 2
		d_step { window_holds(x, 2) };
#endif
		d_step {
			took = took && (closing[x] || off == WINDOW_RECHECK);
			closing[x] = 0;
			if
			:: took && win[x] == LIVE && odd[MM((x) * WP)] && off != WINDOW_FREE -> win[x] = LEAVING
			:: took && (win[x] == DEFERRED || !odd[MM((x) * WP)] || off == WINDOW_FREE) -> win[x] = ABSENT; took = 0
			:: else
			fi
		}
	:: else
	fi;
	if
	:: took -> d_step { win[x] == REMOVED -> win[x] = ABSENT; took = 0 }
	:: else
	fi
}

/* Sets the sequence of the window of page v. Within a step. */
inline set_sequence(v) {
	invalidated[W(v)] = 1;
	x_i = 0;
	do
	:: x_i < NACT -> COLLIDED(x_i, v) = 1; x_i++
	:: else -> break
	od;
	x_i = 0
}

/* Starts a flush of page v in mirror d, if x_flush. Within a step. */
inline start_flush(v, d) {
	if
	:: x_flush ->
		changing[MI(MM(v), d)]++; x_pend = x_pend | BIT(d); x_flush = 0;
		STAGE(flush, a, MI(MM(v), d), 0, v, 0)
	:: else
	fi
}
/* Waits for the flushes of page v in x_pend, one after the other. */
#define FIRST_OF(set) (set & BIT(0) -> 0 : (set & BIT(1) -> 1 : 2))
inline wait_flushes(v) {
	do
	:: x_pend == 0 -> break
#ifdef TLB
	:: x_pend != 0 ->
		d_step { x_d = FIRST_OF(x_pend); tlb[T(v, x_d)] = 0; tlb_w[T(v, x_d)] = 0; x_d = 0 };
		IDLE(v, FIRST_OF(x_pend));
		d_step {
#else
	:: d_step {
			x_pend != 0 && IDLE(v, FIRST_OF(x_pend)) ->
#endif
			x_d = FIRST_OF(x_pend);
			changing[MI(MM(v), x_d)]--; x_pend = x_pend - BIT(x_d);
			printf("device %d: flush of page %d is over\n", x_d, v);
			STAGE(flush_over, a, MI(MM(v), x_d), 0, v, 0);
			x_d = 0
		}
	od;
	/* SPIN permits no d_step here. */
	skip
}

/*
 * Whether the event of a, named or not, keeps the entry t. An event is a migration's own only
 * by its name.
 */
#define IS_OWN(t, named, a) ((named) && (mark[t] == (a) + 1 || off == H9))
#define KEEPS(t, named, a) (IS_OWN(t, named, a) && off != RULE5 && (!IS_ZERO(entry[t]) || off == ZERO_PAGE))

/* Handles an event in the mirror of device d. With its table lock. */
inline event_mirror(v, d, reason, named, a) {
	d_step {
		UNLOCKED(v, d) ->
		assert(win[W(v)] == LIVE || win[W(v)] == LEAVING);
		x_t = T(v, d);
		x_flush = changing[MI(MM(v), d)] > 0 && off != OTHERS;
		STAGE(event, a, MI(MM(v), d), ((named) && (ann & BIT(d)) -> NAME(a, v) : 0), v, 0);
		if
		:: KEEPS(x_t, named, a) -> printf("%d: device %d keeps frame %d for page %d\n", a, d, entry[x_t], v)
		:: off == H10 && reason == MIGRATE && mark[x_t] == 0
		:: else ->
			if
			:: !IS_OWN(x_t, named, a) && off != H3 -> mark[x_t] = 0; had_w[x_t] = 0
			:: else
			fi;
			if
			:: reason == PROTECT && entry_w[x_t] -> retire(x_t); entry_w[x_t] = 0; x_flush = 1
			:: reason != PROTECT && entry[x_t] != 0 -> retire(x_t); entry[x_t] = 0; entry_w[x_t] = 0; x_flush = 1
			:: else
			fi;
			printf("%d: device %d has frame %d for page %d\n", a, d, entry[x_t], v)
		fi;
		x_flush = x_flush && !(off == FLUSH_FIRST && x_pend != 0);
		start_flush(v, d);
		x_t = 0
	}
#ifdef SERIAL_FLUSHES
	wait_flushes(v)
#endif
}

/*
 * An event for page v: mmu_notifier_invalidate_range_start(). named: it has the identity of its
 * migration.
 */
inline event(v, reason, named, a) {
	d_step {
		events[MM(v)]++;
		x_in = win[W(v)] == LIVE || win[W(v)] == LEAVING;
		odd[MM(v)] = odd[MM(v)] || x_in;
		printf("%d: event %e about page %d begins, window is hit: %d\n", a, reason, v, x_in)
	};
	if
	:: x_in ->
		/* The window's lock. */
		d_step {
			assert(win[W(v)] == LIVE || win[W(v)] == LEAVING);
			if
			:: off != SEQUENCE_LAST -> set_sequence(v)
			:: else
			fi
		};
		/* Start all flushes before the first one is waited for. */
		event_mirror(v, 0, reason, named, a);
#if DEVICES > 1
		event_mirror(v, 1, reason, named, a);
#endif
#if DEVICES > 2
		event_mirror(v, 2, reason, named, a);
#endif
		wait_flushes(v);
		/* With broken rules only. */
		if
		:: off == SEQUENCE_LAST -> d_step { set_sequence(v) }
		:: off == WINDOW_CALLBACK && entry[T(v, 0)] == 0 && win_users[W(v)] == 0 && win[W(v)] == LIVE ->
			win[W(v)] = LEAVING; (win[W(v)] == REMOVED); win[W(v)] = ABSENT
		:: else
		fi
	:: else
	fi
}
/* mmu_notifier_invalidate_range_end() */
inline event_end(v) {
	d_step {
		/* The end of the callback. */
		if
		:: x_in ->
			x_in = 0; x_i = 0;
			do
			:: x_i < DEVICES -> STAGE(event_over, a, MI(MM(v), x_i), 0, v, 0); x_i++
			:: else -> break
			od;
			x_i = 0
		:: else
		fi;
		events[MM(v)]--;
		if
		:: events[MM(v)] == 0 && odd[MM(v)] ->
			odd[MM(v)] = 0;
			x_i = W(V(MM(v), 0));
			do
			:: x_i < W(V(MM(v), NP - 1)) + 1 ->
				invalidated[x_i] = 0;
				if
				:: win[x_i] == DEFERRED -> win[x_i] = LIVE
				:: win[x_i] == LEAVING -> win[x_i] = REMOVED
				:: else
				fi;
				x_i++
			:: else -> break
			od;
			x_i = 0
		:: else
		fi
	}
}

/* Migration */

/* A step from a memory begins or ends, for unplug. Within a step. */
#define DEPART(memory) x_m = memory; x_dep = 1; x_e = epoch[x_m]; departing[x_m * 2 + x_e]++
#define DEPARTED departing[x_m * 2 + x_e]--; x_m = 0; x_dep = 0; x_e = 0

/* Marks the entry of page v unless it has a mark, and makes it read-only. Within a step. */
inline mark_entry(v, d, a, has_joined, keep_write) {
	x_t = T(v, d);
	if
	:: mark[x_t] == 0 || off == H13 -> mark[x_t] = (a) + 1; had_w[x_t] = (has_joined) && entry_w[x_t]
	:: else
	fi;
	ann = ann | BIT(d);
	printf("%d: announced: page %d of device %d, marked by %d\n", a, v, d, mark[x_t] - 1);
	if
	:: entry_w[x_t] && !(keep_write) -> retire(x_t); entry_w[x_t] = 0; x_flush = 1
	:: else
	fi;
	start_flush(v, d);
	x_t = 0
}

/*
 * Announces the migration of page v to its own mirror, unless the window was invalidated: x_own.
 * A page that cannot be migrated is not announced. With the mmap lock.
 */
inline announce(v, d, a) {
	d_step {
		UNLOCKED(v, d) ->
		x_own = !COLLIDED(a, v) || off == H4;
		if
		:: x_own && (!pinned[pte_f[v]] || off == RULE12) ->
			STAGE(announce, a, MI(MM(v), d), NAME(a, v), v, (mark[T(v, d)] == 0 || off == H13));
			mark_entry(v, d, a, 0, off == H1)
		:: else
		fi
	};
	wait_flushes(v)
}

/*
 * Mirror d joins the migration if it has an entry. It waits for no invalidation: one in progress
 * has already removed the entry or its write access, and no entry is installed before it ends.
 */
inline join_mirror(v, q, a, usable) {
#if DROPS
	if
	:: x_later = 0
	:: x_later = 1
	fi;
#endif
	d_step {
		UNLOCKED(v, q) ->
		if
		:: !(ann & BIT(q)) && opened[MI(MM(v), q)] && entry[T(v, q)] != 0 && (usable) && !x_later && off != JOIN ->
			joined[MI(MM(v), q)]++;
			STAGE(announce_reader, a, MI(MM(v), q), NAME(a, v), v, (mark[T(v, q)] == 0 || off == H13));
			mark_entry(v, q, a, 1, off == JOIN_WRITE)
		:: else
		fi;
		x_later = 0
	};
	wait_flushes(v)
}
/* All mirrors join that can use memory to, in which any can use system memory, and none yet. */
#define USABLE(d, to) ((to) == SYSTEM || MEM(d) == MEM(to))
inline join(v, to, any, a) {
	join_mirror(v, 0, a, (any) || USABLE(0, to));
#if DEVICES > 1
	join_mirror(v, 1, a, (any) || USABLE(1, to));
#endif
#if DEVICES > 2
	join_mirror(v, 2, a, (any) || USABLE(2, to))
#endif
}

/*
 * Restores write access of a mirror that has joined, if its entry was writable then, was switched
 * to n, and has its mark.
 */
inline permit_joined(v, q, a) {
	d_step {
		UNLOCKED(v, q) ->
		if
		:: mark[T(v, q)] == (a) + 1 && had_w[T(v, q)] && entry[T(v, q)] == n -> entry_w[T(v, q)] = 1
		:: else
		fi
	}
}

/*
 * Replaces the entry of page v, which was migrated to n, or removes it if the mirror cannot use n
 * or has lost its mark. install: also where none was. The mirrors of a migration commit one after
 * the other, while other processes run.
 */
inline switch_entry(v, q, a, own, install, write) {
	d_step {
		UNLOCKED(v, q) || off == RULE3 ->
		x_t = T(v, q);
		assert(opened[MI(MM(v), q)]);
		x_flush = changing[MI(MM(v), q)] > 0 && off != OTHERS;
		STAGE(switch, a, MI(MM(v), q), NAME(a, v), v, (mark[x_t] == (a) + 1));
		if
		:: mark[x_t] == (a) + 1 && (entry[x_t] != 0 || (install)) ->
			x_later = (write) && entry[x_t] != 0;
			entry_w[x_t] = (write) && (entry[x_t] == 0 || off == EARLY_WRITE);
			x_flush = x_flush || entry[x_t] != 0;
			entry[x_t] = n;
			if
			:: !IS_SYS(n) && !HAS(q, n) -> entry[x_t] = 0; entry_w[x_t] = 0; x_later = 0
			:: else
			fi;
			had_w[x_t] = (had_w[x_t] || (off == H14 && (own) != (q))) && w && entry[x_t] != 0;
			printf("%d: device %d gets frame %d for page %d, write %d\n", a, q, entry[x_t], v, entry_w[x_t])
		:: mark[x_t] != (a) + 1 && entry[x_t] != 0 && !entry_w[x_t] && off != STAYS && off != H13 ->
			entry[x_t] = 0; x_flush = 1;
			printf("%d: device %d loses page %d\n", a, q, v)
		:: else
		fi;
		x_flush = x_flush && !(off == PROOF_OF_OTHER && !(install) && DEVICES > 1) && off != PROOF_OF_RANGE;
		start_flush(v, q);
		x_t = 0
	};
	wait_flushes(v);
	/*
	 * Restore write access of the mirror that has announced the migration, once no engine reads
	 * the source, if the entry has its mark.
	 */
	if
	:: off == JOINED_EARLY && (own) != (q) -> permit_joined(v, q, a)
	:: x_later ->
		d_step {
			UNLOCKED(v, q) ->
			x_later = 0;
			if
			:: (mark[T(v, q)] == (a) + 1 || off == LOST_WRITE) && entry[T(v, q)] == n -> entry_w[T(v, q)] = 1
			:: else
			fi
		}
	:: else
	fi
}
/* Removes the entry of a page that was migrated, because the migration is dropped. */
inline forget_moved(v, q, a) {
	d_step {
		UNLOCKED(v, q) ->
		x_t = T(v, q);
		x_flush = entry[x_t] != 0 || (changing[MI(MM(v), q)] > 0 && off != OTHERS);
		if
		:: entry[x_t] != 0 -> retire(x_t)
		:: else
		fi;
		entry[x_t] = 0; entry_w[x_t] = 0;
		printf("%d: device %d loses page %d, whose migration is dropped\n", a, q, v);
		start_flush(v, q);
		x_t = 0
	};
	wait_flushes(v)
}
inline commit_mirror(v, q, a, own, to, write) {
	if
	:: (ann & BIT(q)) && x_drop && off != DROP -> forget_moved(v, q, a)
	:: (ann & BIT(q)) && !x_drop && !((own) != (q) && off == PULL) -> switch_entry(v, q, a, own, (own) == (q) && (to) != SYSTEM, (write) && (own) == (q))
	:: else
	fi
}
/* The mirror own commits after the joined ones; with SYSTEM all have joined. */
inline commit_other(v, q, own, to, a) {
	if
	:: (own) != (q) -> commit_mirror(v, q, a, own, to, w)
	:: else
	fi
}
inline commit_own(v, own, to, a) {
	if
	:: (own) != SYSTEM -> commit_mirror(v, own, a, own, to, w)
	:: else
	fi
}
inline commit(v, own, to, a) {
#ifdef BREAKS_SOURCE_FIRST
	commit_own(v, own, to, a);
#endif
	commit_other(v, 0, own, to, a);
#if DEVICES > 1
	commit_other(v, 1, own, to, a);
#endif
#if DEVICES > 2
	commit_other(v, 2, own, to, a);
#endif
#ifndef BREAKS_SOURCE_FIRST
	commit_own(v, own, to, a)
#endif
}

/*
 * Ends the migration in mirror q: restores write access, removes its mark, and lets the mirror be
 * closed.
 */
inline retract_mirror(v, q, own, a) {
	if
	:: ann & BIT(q) && moved && !x_drop && had_w[T(v, q)] -> permit_joined(v, q, a)
	:: else
	fi;
	d_step {
		UNLOCKED(v, q) || off == RULE3 ->
		if
		:: ann & BIT(q) ->
			STAGE(end, a, MI(MM(v), q), NAME(a, v), v, 0);
			ann = ann - BIT(q);
			assert(opened[MI(MM(v), q)]);
			joined[MI(MM(v), q)] = joined[MI(MM(v), q)] - ((own) != (q));
			if
			:: mark[T(v, q)] == (a) + 1 && !(off == DROP_MARKS && x_drop) -> mark[T(v, q)] = 0; had_w[T(v, q)] = 0
			:: else
			fi
		:: else
		fi
	}
}
inline retract(v, own, a) {
	retract_mirror(v, 0, own, a);
#if DEVICES > 1
	retract_mirror(v, 1, own, a);
#endif
#if DEVICES > 2
	retract_mirror(v, 2, own, a)
#endif
}

/* Drops the migration here, or continues. */
inline may_drop() {
#if DROPS
	if
	:: !x_drop -> x_drop = 1
	:: skip
	fi
#else
	skip
#endif
}

/*
 * The first half of a step of the mirror own, which has announced page v: the other mirrors join,
 * the page is isolated, on device from or with SYSTEM in system memory, and n is allocated in to.
 */
inline submit(v, own, from, to, a) {
	may_drop();
	if
	:: !x_drop ->
		join(v, to, (from) != SYSTEM && (to) != SYSTEM, a);
		d_step {
			if
			:: (from) != SYSTEM -> DEPART(MEM(from))
			:: else
			fi;
			table_locked[MI(MM(v), own)] = (off == RULE3)
		};
		event(v, MIGRATE, 1, a);
		isolate(v, (from) == SYSTEM, from, a);
		/* A page without other references is migrated. */
		assert(!quiet || s == 0 || took);
		event_end(v);
		may_drop();
		d_step {
			STAGE(isolate, a, ALL_MIRRORS, NAME(a, v), v, 0);
			if
			:: (to) != SYSTEM && closed[MEM(to)] -> x_drop = 1
			:: (to) != SYSTEM && !closed[MEM(to)] -> arriving[MEM(to)]++; x_arr = 1
			:: else
			fi
		};
		if
		:: (s == 0 && !hole) || x_drop
		:: (s != 0 || hole) && !x_drop && (to) == SYSTEM -> alloc_system(n)
		:: (s != 0 || hole) && !x_drop && (to) != SYSTEM -> alloc_device(n, to)
		fi
	:: else
	fi
}

/*
 * The second half: copies and migrates the page, replaces the entries of all mirrors, and frees
 * the source.
 */
inline finish(v, own, to, a) {
	if
	:: (own) == SYSTEM -> STAGE(isolate, a, ALL_MIRRORS, NAME(a, v), v, 0)
	:: else
	fi;
	may_drop();
	if
	:: s != 0 && !x_drop -> copy()
	:: else
	fi;
	/* If the destination was unplugged by the end of the copy, the page is restored. */
	d_step {
		x_drop = x_drop || (x_arr && closed[MEM(to)]);
		moved = moved && !x_drop
	};
	if
	/* migrate_vma_pages() has an event of its own for holes. */
	:: hole && n != 0 && !x_drop -> event(v, MIGRATE, 1, a); fill_hole(v); event_end(v)
	:: else
	fi;
#ifdef BREAKS_H15
	if
	:: s != 0 -> finalize(v)
	:: else
	fi;
#endif
	if
	:: moved || (off == H5 && n != 0 && s != 0) || (off == H6 && n != 0 && hole) ->
		d_step { STAGE(move, a, ALL_MIRRORS, NAME(a, v), v, moved); dirty[n] = dirty[n] || IS_SYS(n) };
		may_drop();
		commit(v, own, to, a)
	:: else ->
		if
		:: ((own) == SYSTEM && ann == 0) || (ann != 0 && !x_drop) -> STAGE(move, a, ALL_MIRRORS, NAME(a, v), v, 0)
		:: else
		fi
	fi;
#ifndef BREAKS_H15
	if
	:: s != 0 -> finalize(v)
	:: hole && n != 0 && !moved -> d_step { put(n) }
	:: hole && moved -> STAGE(finalize, a, ALL_MIRRORS, NAME(a, v), v, 0)
	:: else
	fi;
#endif
	retract(v, own, a);
	d_step {
		if
		:: x_arr -> arriving[MEM(to)]--
		:: else
		fi;
		if
		:: x_dep -> DEPARTED
		:: else
		fi;
		x_arr = 0; s = 0; n = 0; moved = 0; w = 0; took = 0; hole = 0; x_drop = 0; x_own = 0
	}
}

/*
 * A request of mirror own: migrates page v from from to to, each a device or SYSTEM. With H11
 * broken, without the mmap lock.
 */
inline migrate(v, own, from, to, a) {
	enter(v, 0, 0);
	if
	:: x_alive ->
		do
		:: READ_BEGIN(a, v);
			d_step { MAY_READ(MM(v)) -> mm_readers[MM(v)] = mm_readers[MM(v)] + (off != H11) };
			announce(v, own, a);
			if
			:: x_own -> break
			:: else -> mm_readers[MM(v)] = mm_readers[MM(v)] - (off != H11)
			fi
		od;
		if
		:: ann != 0 -> submit(v, own, from, to, a); finish(v, own, to, a)
		:: else
		fi;
		d_step {
			win_users[W(v)] = win_users[W(v)] - COUNTED(0); COLLIDED(a, v) = 1; x_own = 0; users[MM(v)]--; x_alive = 0;
			mm_readers[MM(v)] = mm_readers[MM(v)] - (off != H11)
		}
	:: else
	fi
}

/* Eviction */

/*
 * Takes the lock of page v's address space for an eviction: by trylock, because the process may
 * be another one, unless wait. x_locked: whether it has it.
 */
inline evict_lock(v, wait) {
	if
	:: (wait) || off == EVICT_WAITS ->
		mmap_read(MM(v));
		d_step { x_locked = users[MM(v)] > 0; users[MM(v)] = users[MM(v)] + x_locked; mm_readers[MM(v)] = mm_readers[MM(v)] - !x_locked }
	:: else ->
		d_step {
			x_locked = MAY_READ(MM(v)) && users[MM(v)] > 0;
			mm_readers[MM(v)] = mm_readers[MM(v)] + x_locked; users[MM(v)] = users[MM(v)] + x_locked
		}
	fi
}
/* Evicts page v from device d with plain events, which remove the entries. */
inline evict_page(v, d, wait, a) {
	d_step { DEPART(MEM(d)) };
	evict_lock(v, wait);
	if
	:: x_locked ->
#ifdef BREAKS_H12
		d_step { mark_entry(v, d, a, 0, 0); changing[MI(MM(v), d)] = 0; x_pend = 0; ann = 0 };
#endif
		event(v, CLEAR, off == H12, a);
		isolate(v, 0, d, a);
		event_end(v);
		if
		:: s != 0 ->
			alloc_system(n);
			copy();
			d_step {
				if
				:: !moved && closed[MEM(d)] -> lost[MEM(d)] = 1
				:: else
				fi;
				dirty[n] = dirty[n] || moved
			};
			finalize(v)
		:: else
		fi;
		d_step { s = 0; n = 0; moved = 0; w = 0; took = 0; hole = 0; mm_readers[MM(v)]--; users[MM(v)]--; x_locked = 0 }
	:: else
	fi;
	d_step { DEPARTED }
}

/*
 * Evicts pages from device d, unless one is free, for a migration of the process of v. It waits for
 * the mmap lock of that process only. No lock is held.
 */
inline make_room(v, d, a) {
	x_u = 0;
	do
	:: x_u < NV ->
		alloc_device(n, d);
		d_step {
			took = n == 0 && pte[x_u] == DEVICE && HAS(d, pte_f[x_u]) && x_u != v;
			if
			:: n != 0 -> put(n); n = 0
			:: else
			fi
		};
		if
		:: took -> took = 0; evict_page(x_u, d, MM(x_u) == MM(v), a)
		:: else
		fi;
		x_u++
	:: else -> break
	od;
	x_u = 0
}

/*
 * Removes all entries and marks of page v from mirror d, without an event. The table lock is held
 * until the flush is over: a task that finds no entry relies on no TLB having the translation.
 */
inline forget(v, d) {
	d_step {
		UNLOCKED(v, d) ->
		STAGE(remove, a, MI(MM(v), d), 0, v, 0);
		if
		:: entry[T(v, d)] != 0 -> retire(T(v, d))
		:: else
		fi;
		entry[T(v, d)] = 0; entry_w[T(v, d)] = 0; mark[T(v, d)] = 0; had_w[T(v, d)] = 0; changing[MI(MM(v), d)]++;
		table_locked[MI(MM(v), d)] = off != FORGET_UNLOCKED
	};
	flush(v, d);
	table_locked[MI(MM(v), d)] = 0
}
inline forget_all(d) {
	x_v = 0;
	do
	:: x_v < NV -> forget(x_v, d); x_v++
	:: else -> break
	od;
	x_v = 0
}

/* CPU faults */

/* Leaves a huge page, frame s, to a work item, which splits it, and sleeps without any lock. */
inline sleep(v, a) {
	d_step {
		work[v]++;
		isolated[s] = 0; refs[s] = refs[s] + (off == SLEEP_REFERENCE); locked[s] = off == SLEEP_FOLIO;
		printf("%d: leaves page %d to the work item\n", a, v);
		DEPARTED;
		put(s)
	};
	if
	:: off != SLEEP_MMAP -> mmap_read_unlock(MM(v)); x_locked = 0
	:: else
	fi;
	(work[v] == 0);
	d_step {
		if
		:: off == SLEEP_FOLIO -> locked[s] = 0
		:: off == SLEEP_REFERENCE -> refs[s]--; put(s)
		:: else
		fi;
		s = 0; x_split = 1
	}
}

/*
 * The CPU accesses page v in device memory. With the mmap lock, which it may release if x_locked.
 * Waits only for flushes: all mirrors with an entry join.
 */
inline cpu_fault(v, a) {
	d_step {
		took = 0;
		if
		:: pte[v] == DEVICE && dead[MEM_OF(pte_f[v])] -> sigbus(v)
		:: pte[v] == DEVICE && !dead[MEM_OF(pte_f[v])] && locked[pte_f[v]] ->
			took = 1;
			if
			:: off == RULE7 -> sigbus(v)
			:: else
			fi
		:: pte[v] == DEVICE && !dead[MEM_OF(pte_f[v])] && !locked[pte_f[v]] ->
			s = pte_f[v]; locked[s] = 1; isolated[s] = 1;
			DEPART(MEM_OF(s))
		:: else
		fi
	}
	if
	:: took -> d_step { pte[v] != DEVICE || !locked[pte_f[v]] -> took = 0 }
	:: s != 0 ->
		if
		:: !(WORKER && x_locked && !x_split) ->
			join(v, SYSTEM, 1, a);
			event(v, MIGRATE, 1, a);
			unmap(v, a);
			event_end(v);
			assert(!quiet || took);
			alloc_system(n);
			finish(v, SYSTEM, SYSTEM, a)
		:: WORKER && x_locked && !x_split -> sleep(v, a)
		fi
	:: else
	fi
}

/* Device faults */

inline device_fault(v, d, write, a) {
	enter(v, off == WINDOW_LATE, 1);
	if
	:: x_alive ->
		if
		:: off != WINDOW_LATE -> READ_BEGIN(a, v)
		:: else
		fi;
		mmap_read(MM(v));
		/* hmm_range_fault(), including the faults that it handles. */
		if
		:: !vm[v] || (write && !vm_w[v])
		:: vm[v] && pte[v] == NONE -> populate(v)
		:: vm[v] && pte[v] == MIGRATING -> (pte[v] != MIGRATING)
		:: pte[v] == DEVICE && !HAS(d, pte_f[v]) -> cpu_fault(v, a)
		:: pte[v] == DEVICE && HAS(d, pte_f[v]) && write && !pte_w[v] ->
			d_step {
				if
				:: pte[v] == DEVICE && mapped[pte_f[v]] == 1 && !isolated[pte_f[v]] && vm_w[v] -> pte_w[v] = 1
				:: else -> took = 1
				fi
			};
			if
			:: took -> took = 0; cpu_fault(v, a)
			:: else
			fi
		:: write && vm_w[v] && pte[v] == PRESENT && !pte_w[v] && off != RULE6 -> break_cow(v, a)
		:: else
		fi;
		d_step {
			if
			:: vm[v] && (pte[v] == PRESENT || (pte[v] == DEVICE && HAS(d, pte_f[v]))) && (!write || (vm_w[v] && (pte_w[v] || off == RULE6))) ->
				s = pte_f[v]; w = pte_w[v] || (write && off == RULE6)
			:: else
			fi;
			mm_readers[MM(v)]--
		};
		if
		:: off == WINDOW_LATE -> d_step { NOT_LEAVING(v) -> window_make(v) }; READ_BEGIN(a, v)
		:: else
		fi;
		/* The table lock. */
		d_step {
			UNLOCKED(v, d) ->
			if
			:: s != 0 && (!COLLIDED(a, v) || off == RULE1) && (mark[T(v, d)] == 0 || off == H2) && (!closed[MEM(d)] || off == FORGET) && opened[MI(MM(v), d)] ->
				STAGE(install, a, MI(MM(v), d), 0, v, 1);
				entry[T(v, d)] = s; entry_w[T(v, d)] = w; warm[T(v, d)] = 1; warm_w[T(v, d)] = w && still;
				printf("%d: device %d gets frame %d for page %d, write %d\n", a, d, s, v, w)
			:: else
			fi;
			s = 0; w = 0; COLLIDED(a, v) = 1; win_users[W(v)] = win_users[W(v)] - COUNTED(1); users[MM(v)]--; x_alive = 0
		}
	:: else
	fi
}

#include "actors.pml"

/*
 * A thread of the process. Like the core, it waits for migration entries with the mmap lock
 * held.
 */
proctype cpu(byte a, v) {
	LOCALS;
	byte ops = 0;
	bit write = 0, again = 0;

	do
	:: ops < CPU_OPS && vm[v] ->
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
			x_locked = 1;
			if
			:: !vm[v] || (write && !vm_w[v])
			:: vm[v] && pte[v] == NONE -> populate(v)
			:: vm[v] && pte[v] == MIGRATING -> (pte[v] != MIGRATING)
			:: vm[v] && pte[v] == DEVICE -> cpu_fault(v, a)
			:: write && vm_w[v] && pte[v] == PRESENT && !pte_w[v] -> break_cow(v, a)
			:: else
			fi;
			if
			:: x_locked -> mmap_read_unlock(MM(v)); x_locked = 0
			:: else
			fi;
			/* The access is repeated after a split, once. */
			if
			:: x_split && !again -> again = 1; ops--
			:: else
			fi
		fi
	:: else -> break
	od;
	left--
}

/* Migrates page v to device d, or from there. */
proctype mover(byte a, v, d) {
	LOCALS;
	byte x_from = SYSTEM, x_to = d;
	if
	:: x_from = d; x_to = SYSTEM
	:: skip
	fi;
	migrate(v, d, x_from, x_to, a);
	left--
}

proctype round_trip(byte a, v, d) {
	LOCALS;
	byte x_from = SYSTEM, x_to = d;
	do
	:: migrate(v, d, x_from, x_to, a);
		if
		:: x_to == d -> x_from = d; x_to = SYSTEM
		:: else -> break
		fi
	od;
	left--
}

/* Migrates page v from the memory of device x_from directly to that of device x_to. */
proctype puller(byte a, v, x_from, x_to) {
	LOCALS;
	migrate(v, x_to, x_from, x_to, a);
	left--
}

/* Migrates page v to device d, evicting other pages if necessary. */
proctype crowd(byte a, v, d) {
	LOCALS;
	byte x_u = 0;
	make_room(v, d, a);
	migrate(v, d, SYSTEM, d, a);
	left--
}

proctype evict(byte a, v, d) {
	LOCALS;
	evict_page(v, d, 0, a);
	left--
}

/*
 * Memory::unplug() of device d, after which its driver stops it: only pages that could not be
 * copied are left. No lock is held, so that it may wait for mmap locks.
 */
proctype unplug(byte a, d) {
	LOCALS;
	byte f = 0, rounds = 0;
	closed[d] = 1;
	forget_all(d);
	(arriving[d] == 0 || off == ARRIVALS);
	do
	:: rounds < 4 ->
		rounds++;
		epoch[d] = !epoch[d];
		(departing[d * 2 + !epoch[d]] == 0 || off == DEPARTURES);
		f = 0;
		do
		:: f < NV ->
			if
			:: pte[f] == DEVICE && HAS(d, pte_f[f]) -> evict_page(f, d, 1, a)
			:: else
			fi;
			f++
		:: else -> break
		od
	:: else -> break
	od;
	forget_all(d);
	d_step {
		dead[d] = 1;
		printf("%d: device %d was removed\n", a, d);
		f = NSYS + 1 + d * NDEV;
		do
		:: f < NSYS + 1 + (d + 1) * NDEV -> assert(!used[f] || lost[d]); f++
		:: else -> break
		od
	};
	left--
}

/* The other block of two in flight: swaps its variables with those of this one. */
inline other_block() {
	d_step {
		x_i = s; s = s2; s2 = x_i;
		x_i = n; n = n2; n2 = x_i;
		x_i = ann; ann = ann2; ann2 = x_i;
		x_i = took; took = took2; took2 = x_i;
		x_i = hole; hole = hole2; hole2 = x_i;
		x_i = w; w = w2; w2 = x_i;
		x_i = x_arr; x_arr = x_arr2; x_arr2 = x_i;
		x_i = x_drop; x_drop = x_drop2; x_drop2 = x_i;
		x_i = 0
	}
}

/*
 * Migrates pages v and u to device d: while v is copied, u is announced and isolated. The
 * sequences of both are begun before any lock is taken. A block whose sequence has changed does
 * not overlap, and would be migrated later.
 */
proctype pipeline(byte a, v, u, d) {
	LOCALS;
	byte s2 = 0, n2 = 0, ann2 = 0, x_u = v;
	bit took2 = 0, hole2 = 0, w2 = 0, x_arr2 = 0, x_drop2 = 0, x_two = 0;
	enter(v, 0, 0);
	if
	:: x_alive ->
		d_step { NOT_LEAVING(u) -> window_make(u); win_users[W(u)] = win_users[W(u)] + COUNTED(0); closing[W(u)] = 0 };
		READ_BEGIN(a, v);
		READ_BEGIN(a, u);
		mmap_read(MM(v));
		/* First v, then u. */
		do
		:: announce(x_u, d, a);
			if
			:: x_own -> submit(x_u, d, SYSTEM, d, a)
			:: else
			fi;
			if
			:: !x_two && x_own && !x_drop ->
				x_two = 1; x_own = 0; x_u = u;
				other_block();
				if
				:: off == OVERLAP_WAITS -> READ_BEGIN(a, u)
				:: off == OVERLAP_RELOCKS -> mmap_read_unlock(MM(v)); mmap_read(MM(v))
				:: off == OVERLAP_RETRY -> d_step { COLLIDED(a, u) = 0 }
				:: else
				fi
			:: else -> break
			fi
		od;
		/* If u is dropped, v is migrated nevertheless. */
		x_u = v;
		if
		:: x_two -> other_block()
		:: else
		fi;
		do
		:: finish(x_u, d, d, a);
			if
			:: x_two -> x_two = 0; x_u = u; other_block()
			:: else -> break
			fi
		od;
		x_u = 0;
		d_step { win_users[W(v)] = win_users[W(v)] - COUNTED(0); win_users[W(u)] = win_users[W(u)] - COUNTED(0); COLLIDED(a, v) = 1; COLLIDED(a, u) = 1; mm_readers[MM(v)]--; users[MM(v)]--; x_alive = 0 }
	:: else
	fi;
	left--
}

/* Removes the window of page v if it is empty, or does nothing. */
proctype reaper(byte a, v) {
	LOCALS;
	if
	:: window_remove(W(v))
	:: skip
	fi;
	left--
}

/* A mirror is opened at any time. */
proctype open(byte a, m, d) {
	opened[MI(m, d)] = 1;
	left--
}
/* A mirror that its driver does not use is closed. */
proctype close(byte a, m, d) {
	LOCALS;
	byte f = 0;
	do
	:: f < NP -> forget(V(m, f), d); f++
	:: else -> break
	od;
	f = 0;
	/* No migration joins it any more. */
	d_step { joined[MI(m, d)] == 0 || off == CLOSED -> opened[MI(m, d)] = 0 };
	left--
}

/* An invalidation of page v that waits for its folio, as in UFFDIO_MOVE. */
proctype locker(byte a, v) {
	LOCALS;
	mmap_read(MM(v));
	event(v, CLEAR, 0, a);
	(pte[v] == NONE || (pte[v] != MIGRATING && !locked[pte_f[v]]));
	event_end(v);
	mmap_read_unlock(MM(v));
	left--
}

/* A thread that holds its mmap lock for ever, like one that waits for a hanging file system. */
proctype hang(byte a, m) {
	left--;
	if
	:: d_step { !mm_writer[m] && mm_readers[m] == 0 -> mm_writer[m] = 1 }; (left == 0); mm_writer[m] = 0
	:: left == 0
	fi
}

/*
 * The work item that splits page 0, with the folio and the mmap lock by trylock. It tries until
 * no other task has a reference.
 */
#define SPLITTABLE (pte[0] != DEVICE || (!locked[pte_f[0]] && refs[pte_f[0]] == 0))
proctype splitter(byte a) {
	LOCALS;
	left--;
end:	do
	:: atomic {
			if
			:: d_step { (work[0] > 0 && MAY_READ(MM(0)) && SPLITTABLE && off != WORKER_ORDER) -> mm_readers[MM(0)]++ }
			:: (work[0] > 0 && SPLITTABLE && off == WORKER_ORDER)
			fi;
			d_step {
				if
				:: pte[0] == DEVICE -> s = pte_f[0]; locked[s] = 1; isolated[s] = 1
				:: else
				fi
			}
		};
		if
		:: off == WORKER_ORDER -> mmap_read(MM(0))
		:: else
		fi;
		if
		:: s != 0 -> event(0, CLEAR, 0, a); unmap(0, a); event_end(0); d_step { moved = 0; n = 0 }; finalize(0)
		:: else
		fi;
		d_step {
			printf("%d: page 0 is split\n", a);
			work[0] = 0; s = 0; w = 0; took = 0; mm_readers[MM(0)]--
		}
	od
}

init {
	byte i = 0, n = 0;

	d_step {
		begin();
		do
		:: i < NACT * NW -> collided[i] = 1; i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NV * DEVICES ->
			if
			:: entry[i] != 0 -> win[W(i / DEVICES)] = LIVE
			:: else
			fi;
			i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NMI ->
#ifdef LATE
			opened[i] = i % DEVICES != LATE;
#else
			opened[i] = 1;
#endif
			i++
		:: else -> break
		od;
		i = 0
	};
	atomic {
		SCENARIO
	};
	/* If no process can continue before all have ended, one waits for ever. */
	if
	:: left == 0
	:: timeout -> assert(left == 0)
	fi;
	d_step {
		check_memory();
		do
		:: i < NV * DEVICES -> assert(mark[i] == 0 && !had_w[i] && (entry[i] == 0 || (opened[MI(MM(i / DEVICES), i % DEVICES)] && win[W(i / DEVICES)] == LIVE))); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NW -> assert(win_users[i] == 0 && !invalidated[i] && win[i] != LEAVING && win[i] != REMOVED); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NMI -> assert(joined[i] == 0); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < DEVICES -> assert(arriving[i] == 0 && departing[i * 2] == 0 && departing[i * 2 + 1] == 0); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NV -> assert(work[i] == 0); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < SPACES -> assert(events[i] == 0 && mm_readers[i] == 0 && mm_writers_waiting[i] == 0); i++
		:: else -> break
		od
	}
}
