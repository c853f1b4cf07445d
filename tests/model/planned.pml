/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The planned protocol, for SPIN: see "Architecture" in the design. hmm.pml has the current one. It
 * differs as follows:
 *
 * - An address space owns the list of its mirrors, the notifier windows, and the blocks with a
 *   migration in flight.
 * - A window is an interval notifier over WP pages. A device fault, a migration request or an
 *   attribute creates it; it is removed when it is empty. Memory without a window causes no
 *   callbacks. One callback handles all mirrors: it starts all flushes before it waits for the
 *   first one. A fault retries by the sequence of its window.
 * - A block is BP pages with at most one migration in flight that has marks: for each mirror, the
 *   pages whose entries the migration has made read-only and will replace. A second migration of
 *   the block is an ordinary one.
 * - A migration announces itself to all mirrors of the address space, remembers them, and finalizes
 *   only after a flush of each. It may be dropped in any state. While one block is copied, the next
 *   one is isolated.
 * - Eviction takes foreign mmap locks by trylock, and skips pages whose lock it cannot take.
 * - A CPU fault may leave its work to a worker: it releases the mmap lock and the folio lock, and
 *   sleeps until the work is done.
 *
 * Sequences of notifiers are modelled like mm/mmu_notifier.c: an insertion during an invalidation
 * of the address space is deferred, and counts as invalidated; a removal waits for the end of all
 * invalidations; read_begin waits until no invalidation of the address space is active, if the
 * window was hit by one. mmap locks are fair: readers wait behind a waiting writer, and a trylock
 * then fails. As in do_swap_page(), a task that finds a device page locked waits with the mmap lock
 * held.
 *
 * hmm.pml describes steps, and how contents are checked.
 */
#include "scenario.pml"
mtype = {
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
	/* A window is removed while a mirror has entries in it. */
	WINDOW_ENTRIES,
	/* A window is removed while a page in it has an attribute. */
	WINDOW_ATTRIBUTE,
	/* A window is freed without waiting for running callbacks. */
	WINDOW_FREE,
	/* A window is removed by its own callback. */
	WINDOW_CALLBACK,
	/* A window is created although the process has exited. */
	WINDOW_MMGET,
	/* The sequence of a window is set after the entries are removed. */
	SEQUENCE_LAST,
	/* A device fault is installed although its window was invalidated in between (rule 1). */
	RETRY,

	/* One notifier for all mirrors */

	/* The callback waits for the flush of the first mirror only. */
	FLUSH_FIRST,
	/* An invalidation that finds no entry does not wait for concurrent flushes (rule 2). */
	FLUSH_OTHERS,

	/* Marks in blocks */

	/* Marks are shared by all mirrors: a migration marks a page if any of them has an entry. */
	MARKS_SHARED,
	/*
	 * A marked entry is kept by any migration's event, not only by that of the block's
	 * owner.
	 */
	MARKS_ANY_OWNER,
	/* Foreign events keep the marks. */
	MARKS_STAY,
	/* A migration takes a block that another one owns. */
	BLOCK_STOLEN,
	/*
	 * A block is released before the entries are replaced, and the migration replaces the
	 * entries that are marked then.
	 */
	BLOCK_EARLY,
	/* A device fault installs an entry for a page of a migration in flight. */
	INSTALL_IN_FLIGHT,
	/*
	 * The same, if the mirror had no entry at the announcement: correct, because the
	 * migration removes it, but not faultless.
	 */
	INSTALL_UNMARKED,
	/*
	 * A device fault installs in a mirror that was not announced, e.g. a new one, and the
	 * migration's event keeps the entry.
	 */
	OPENED,
	/* A mirror that is closed keeps its marks. */
	CLOSED,
	/* A read-only entry that has lost its mark is kept, although its page was migrated. */
	STAYS,

	/* The pipeline */

	/* Announced entries keep write access. */
	KEEP_WRITE,
	/* A migration finalizes before the entries are replaced and flushed. */
	FINALIZE_EARLY,
	/* The flush proof of the first mirror is used for all. */
	PROOF_OF_OTHER,
	/* The flush proof of the next page is used for this one. */
	PROOF_OF_RANGE,
	/* A migration that is dropped after pages were migrated keeps the entries. */
	DROP,
	/* A migration that is dropped keeps its block and marks. */
	DROP_MARKS,
	/* A mirror gets write access to the destination before the others have lost the source. */
	COMMIT_WRITE,
	/*
	 * An entry that was announced without a sequence is made writable, although it was
	 * read-only then.
	 */
	COMMIT_WRITE_UNSEQUENCED,
	/* A request does not check the sequence when it announces itself. */
	ANNOUNCE_RETRY,
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

	/* Eviction and CPU faults */

	/* Eviction waits for the mmap lock of another process. */
	EVICT_WAITS,
	/* A CPU fault that waits for the worker keeps the mmap lock. */
	SLEEP_MMAP,
	/* A CPU fault that waits for the worker keeps the folio lock. */
	SLEEP_FOLIO,
	/* A CPU fault that waits for the worker drops its page reference. */
	SLEEP_REFERENCE,
	/* The worker waits for the mmap lock with the folio locked. */
	WORKER_ORDER
};
#define FAIR_LOCKS
#define NO_TLB
#if !defined(DROPS)
#define COPIES_SUCCEED
#endif
#define CAN_MOVE(f) (refs[f] == x_refs)
#define CAN_FREE(f) (refs[f] == 0)
#include "common.pml"

/* Number of accesses of each CPU. */
#ifndef CPU_OPS
#define CPU_OPS 1
#endif
#ifndef WP
#define WP 1
#endif
#ifndef BP
#define BP 1
#endif
#define NW (NV / WP)
#define NB (NV / BP)
#define W(v) ((v) / WP)
#define B(v) ((v) / BP)
#define SYSTEM DEVICES
#define COLLIDED(a, v) collided[(a) * NW + W(v)]
/* Processes of a scenario may drop a migration in any state, or leave CPU faults to the worker. */
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
/* Number of device faults and migrations that use it. */
byte faults[NW];
byte migrations[NW];
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
/* Whether a page has an attribute. */
bit attribute[NV];

/* Open mirrors. */
bit opened[NMI];
/* Blocks: 1 + the migration in flight; marks, by page and mirror. */
byte owner[NB];
bit mark[NV * DEVICES];
/* Pages of migrations in flight: no entry is installed for them, marked or not. */
bit moving[NV];

/* References of sleeping CPU faults. */
byte refs[NF];
/* Number of CPU faults that wait for the worker, by page. */
byte work[NV];

#define LOCALS byte x_d = 0, x_t = 0, x_i = 0, x_v = 0, x_pend = 0, x_refs = 0, ann = 0, s = 0, n = 0; bit moved = 0, w = 0, took = 0, hole = 0, x_flush = 0, x_own = 0, x_in = 0, x_alive = 0, x_win = 0, x_seq = 0, x_locked = 0, x_drop = 0, x_called = 0

/* Windows */

/* Creates the window of page v, unless it exists. Within a step. */
inline window_make(v) {
	assert(users[MM(v)] > 0 || off == MMGET || off == WINDOW_LATE);
	if
	:: win[W(v)] == ABSENT && events[MM(v)] == 0 -> win[W(v)] = LIVE; invalidated[W(v)] = 0
	:: win[W(v)] == ABSENT && events[MM(v)] > 0 && odd[MM(v)] -> win[W(v)] = DEFERRED; invalidated[W(v)] = 1
	:: win[W(v)] == ABSENT && events[MM(v)] > 0 && !odd[MM(v)] -> win[W(v)] = LIVE; odd[MM(v)] = 1; invalidated[W(v)] = 1
	:: else
	fi
}
/* A caller waits for a removal in progress. */
#define NOT_LEAVING(v) (win[W(v)] != LEAVING && win[W(v)] != REMOVED)
/*
 * Takes references to the address space, unless its process has exited, and to the window of v.
 * Without the mmap lock.
 */
inline enter(v, is_fault) {
	d_step {
		NOT_LEAVING(v) ->
		x_alive = users[MM(v)] > 0 || off == MMGET || off == WINDOW_MMGET;
		if
		:: x_alive ->
			if
			:: !(is_fault) || off != WINDOW_LATE -> window_make(v)
			:: else
			fi;
			users[MM(v)]++; faults[W(v)] = faults[W(v)] + (is_fault); migrations[W(v)] = migrations[W(v)] + !(is_fault)
		:: else
		fi
	}
}
#define READ_BEGIN(a, v) d_step { !invalidated[W(v)] || off == WINDOW_QUIET -> COLLIDED(a, v) = 0 }

/* Removes window x if it is empty. A worker may do so at any time. */
inline window_remove(x) {
	d_step {
		took = win[x] == LIVE || win[x] == DEFERRED;
		took = took && (faults[x] == 0 || off == WINDOW_FAULT) && (migrations[x] == 0 || off == WINDOW_MIGRATION);
		x_v = (x) * WP;
		do
		:: x_v < ((x) + 1) * WP ->
			took = took && (!attribute[x_v] || off == WINDOW_ATTRIBUTE);
			x_d = 0;
			do
			:: x_d < DEVICES -> took = took && (entry[T(x_v, x_d)] == 0 || off == WINDOW_ENTRIES); x_d++
			:: else -> break
			od;
			x_v++
		:: else -> break
		od;
		if
		:: took && win[x] == LIVE && odd[MM((x) * WP)] && off != WINDOW_FREE -> win[x] = LEAVING
		:: took && (win[x] == DEFERRED || !odd[MM((x) * WP)] || off == WINDOW_FREE) -> win[x] = ABSENT; took = 0
		:: else
		fi;
		x_v = 0; x_d = 0
	}
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

/* Whether the event of a, named or not, keeps the entry t of page v. */
#define OWNS(v, a) (owner[B(v)] == (a) + 1 || off == MARKS_ANY_OWNER)
#define KEEPS(v, t, named, a) ((named) && ((OWNS(v, a) && mark[t]) || (off == OPENED && owner[B(v)] == (a) + 1)))

/* Waits for the flushes of page v in x_pend, one after the other. */
#define FIRST_OF(set) (set & BIT(0) -> 0 : (set & BIT(1) -> 1 : 2))
inline wait_flushes(v) {
	do
	:: x_pend == 0 -> break
	:: d_step {
			x_pend != 0 && IDLE(v, FIRST_OF(x_pend)) ->
			x_d = FIRST_OF(x_pend);
			changing[MI(MM(v), x_d)]--; x_pend = x_pend - BIT(x_d);
			printf("device %d: flush of page %d is over\n", x_d, v);
			x_d = 0
		}
	od
}

/* Handles an event in the mirror of device d. With its table lock. */
inline event_mirror(v, d, reason, named, a) {
	d_step {
		assert(win[W(v)] == LIVE || win[W(v)] == LEAVING);
		x_t = T(v, d);
		x_flush = changing[MI(MM(v), d)] > 0 && off != FLUSH_OTHERS;
		if
		:: KEEPS(v, x_t, named, a) -> printf("%d: device %d keeps frame %d for page %d\n", a, d, entry[x_t], v)
		:: else ->
			if
			:: off != MARKS_STAY -> mark[x_t] = 0
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
		changing[MI(MM(v), d)] = changing[MI(MM(v), d)] + x_flush;
		x_pend = x_pend | (x_flush << (d));
		x_t = 0; x_flush = 0
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
			fi;
			if
			:: reason == UNMAP -> attribute[v] = 0
			:: else
			fi
		};
		/* Start all flushes. */
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
		:: off == WINDOW_CALLBACK && entry[T(v, 0)] == 0 && faults[W(v)] == 0 && migrations[W(v)] == 0 && win[W(v)] == LIVE ->
			win[W(v)] = LEAVING; (win[W(v)] == REMOVED); win[W(v)] = ABSENT
		:: else
		fi
	:: else
	fi
}
/* mmu_notifier_invalidate_range_end() */
inline event_end(v) {
	d_step {
		x_in = 0;
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

/*
 * Announces the migration of page v to the mirrors: makes their entries read-only and marks
 * them, with a flush. seq: it has a sequence, and waits for nothing. Otherwise it marks present
 * entries: an invalidation in progress has already removed the entry or its write access, and no
 * entry is installed before it ends.
 */
inline announce(v, a, seq) {
	d_step {
		x_seq = seq;
		/* Without a window there are no entries. */
		x_win = win[W(v)] == LIVE && !x_seq;
		migrations[W(v)] = migrations[W(v)] + x_win;
		if
		:: (x_seq || x_win) && (owner[B(v)] == 0 || off == BLOCK_STOLEN) ->
			owner[B(v)] = (a) + 1; moving[v] = 1; x_own = 1; printf("%d: takes the block of page %d\n", a, v)
		:: else
		fi
	};
	announce_mirror(v, 0, a);
#if DEVICES > 1
	announce_mirror(v, 1, a);
#endif
#if DEVICES > 2
	announce_mirror(v, 2, a);
#endif
	wait_flushes(v)
}
inline announce_mirror(v, d, a) {
	d_step {
		x_t = T(v, d);
		if
		:: x_own && opened[MI(MM(v), d)] &&
		   ((x_seq && (!COLLIDED(a, v) || off == ANNOUNCE_RETRY)) || (!x_seq && (entry[x_t] != 0 || (off == MARKS_SHARED && ann != 0)))) ->
			mark[x_t] = 1; ann = ann | BIT(d); had_w[x_t] = entry_w[x_t];
			printf("%d: announced: page %d of device %d\n", a, v, d);
			if
			:: entry_w[x_t] && off != KEEP_WRITE -> retire(x_t); entry_w[x_t] = 0; changing[MI(MM(v), d)]++; x_pend = x_pend | BIT(d)
			:: else
			fi
		:: else
		fi;
		x_t = 0
	}
}

/*
 * Replaces the entries of page v, which was migrated to n, in the announced mirrors. Removes the
 * entry if the mirror cannot use n or has lost its mark, or if the migration was dropped.
 * Mirrors are handled one after the other, while other processes run.
 */
inline commit_mirror(v, d, a, write) {
#if DROPS
	if
	:: !x_drop -> x_drop = 1
	:: skip
	fi;
#endif
	d_step {
		x_t = T(v, d);
		x_flush = ann & BIT(d) && changing[MI(MM(v), d)] > 0 && off != FLUSH_OTHERS;
		if
		:: ann & BIT(d) && mark[x_t] && (OWNS(v, a) || off == BLOCK_EARLY) && !x_drop ->
			entry[x_t] = n; entry_w[x_t] = write && off == COMMIT_WRITE; x_flush = 1;
			if
			:: !IS_SYS(n) && !HAS(d, n) -> entry[x_t] = 0; entry_w[x_t] = 0
			:: else
			fi;
			printf("%d: device %d gets frame %d for page %d, write %d\n", a, d, entry[x_t], v, entry_w[x_t])
		:: ann & BIT(d) && !(mark[x_t] && (OWNS(v, a) || off == BLOCK_EARLY) && !x_drop) && entry[x_t] != 0 && !entry_w[x_t] && off != (x_drop -> DROP : STAYS) ->
			entry[x_t] = 0; x_flush = 1;
			printf("%d: device %d loses page %d\n", a, d, v)
		:: else
		fi;
		changing[MI(MM(v), d)] = changing[MI(MM(v), d)] + x_flush;
		x_pend = x_pend | (x_flush << (d));
		x_t = 0; x_flush = 0
	}
}
inline commit(v, a, write) {
	commit_mirror(v, 0, a, write);
#if DEVICES > 1
	commit_mirror(v, 1, a, write);
#endif
#if DEVICES > 2
	commit_mirror(v, 2, a, write);
#endif
	d_step {
		/* Without the flush proofs of the others. */
		if
		:: off == PROOF_OF_OTHER && x_pend == (BIT(0) | BIT(1)) -> x_pend = BIT(0); changing[MI(MM(v), DEVICES - 1)]--
		:: off == PROOF_OF_RANGE && x_pend & BIT(0) -> x_pend = x_pend - BIT(0); changing[MI(MM(v), 0)]--
		:: else
		fi
	};
	wait_flushes(v);
	permit_write(v, 0, a, write);
#if DEVICES > 1
	permit_write(v, 1, a, write);
#endif
#if DEVICES > 2
	permit_write(v, 2, a, write);
#endif
}
/*
 * Restores write access once no engine reads the source, for entries that still have their mark:
 * with a sequence, or if the entry was writable when it was announced.
 */
inline permit_write(v, d, a, write) {
	d_step {
		if
		:: ann & BIT(d) && mark[T(v, d)] && OWNS(v, a) && entry[T(v, d)] == n && n != 0 -> entry_w[T(v, d)] = write && (x_seq || had_w[T(v, d)] || off == COMMIT_WRITE_UNSEQUENCED)
		:: else
		fi
	}
}

/* Ends the migration: removes the remaining marks, and releases the block. */
inline retract(v, a) {
	d_step {
		if
		:: (owner[B(v)] == (a) + 1 || off == BLOCK_EARLY) && !(off == DROP_MARKS && x_drop) ->
			x_d = 0;
			do
			:: x_d < DEVICES -> mark[T(v, x_d)] = mark[T(v, x_d)] && !(ann & BIT(x_d)); had_w[T(v, x_d)] = had_w[T(v, x_d)] && !(ann & BIT(x_d)); x_d++
			:: else -> break
			od
		:: else
		fi;
		if
		:: owner[B(v)] == (a) + 1 && !(off == DROP_MARKS && x_drop) -> owner[B(v)] = 0; moving[v] = 0
		:: else
		fi;
		migrations[W(v)] = migrations[W(v)] - x_win;
		x_d = 0; ann = 0; x_own = 0; x_seq = 0; x_win = 0;
		s = 0; n = 0; moved = 0; w = 0; took = 0; hole = 0; x_drop = 0; x_refs = 0
	}
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

/* Isolates page v, on device from or with SYSTEM in system memory, and allocates n at to. */
inline isolate_announced(v, from, to, a) {
	event(v, MIGRATE, 1, a);
	isolate(v, from == SYSTEM, from, a);
	assert(!quiet || s == 0 || took);
	event_end(v);
	may_drop();
	if
	:: (s == 0 && !hole) || x_drop
	:: (s != 0 || hole) && !x_drop && to == SYSTEM -> alloc_system(n)
	:: (s != 0 || hole) && !x_drop && to != SYSTEM -> alloc_device(n, to)
	fi
}

/* Copies and migrates the isolated page, replaces the entries, and frees the source. */
inline finish(v, a, write) {
	may_drop();
	if
	:: hole && !x_drop -> fill_hole(v)
	:: s != 0 && !x_drop -> copy()
	:: else
	fi;
	if
	:: off == FINALIZE_EARLY && s != 0 -> finalize()
	:: off == BLOCK_EARLY -> d_step { owner[B(v)] = 0; moving[v] = 0 }
	:: else
	fi;
	if
	:: moved -> x_own = write; commit(v, a, x_own)
	:: else
	fi;
	if
	:: off != FINALIZE_EARLY && s != 0 -> finalize()
	:: hole && n != 0 && !moved -> d_step { put(n) }
	:: else
	fi;
	retract(v, a)
}

/*
 * A request: migrates page v from from to to, each a device or SYSTEM. room: evicts another page
 * if necessary.
 */
inline migrate(v, from, to, room, a) {
	enter(v, 0);
	if
	:: x_alive ->
		READ_BEGIN(a, v);
		mmap_read(MM(v));
		if
		:: room -> make_room(v, to, a)
		:: else
		fi;
		announce(v, a, 1);
		may_drop();
		if
		:: x_drop -> finish(v, a, 0)
		:: else -> isolate_announced(v, from, to, a); finish(v, a, w)
		fi;
		d_step { migrations[W(v)]--; COLLIDED(a, v) = 1; mm_readers[MM(v)]--; users[MM(v)]--; x_alive = 0 }
	:: else
	fi
}

/* Eviction */

/* Evicts page v from device d with plain events, which remove the entries. With the mmap lock. */
inline evict_page(v, d, a) {
	event(v, CLEAR, 0, a);
	isolate(v, 0, d, a);
	event_end(v);
	if
	:: s != 0 -> alloc_system(n); copy(); finalize()
	:: else
	fi;
	d_step { s = 0; n = 0; moved = 0; w = 0; took = 0 }
}

/*
 * Evicts a page from device d, unless one is free, for a migration of v. Skips pages whose lock
 * it cannot take.
 */
inline make_room(v, d, a) {
	d_step { x_u = 0; n = 0 }
	do
	:: x_u < NV ->
		alloc_device(n, d);
		if
		:: n == 0 && pte[x_u] == DEVICE && HAS(d, pte_f[x_u]) && MM(x_u) != MM(v) ->
			if
			:: off == EVICT_WAITS -> mmap_read(MM(x_u)); d_step { x_locked = users[MM(x_u)] > 0; users[MM(x_u)] = users[MM(x_u)] + x_locked; mm_readers[MM(x_u)] = mm_readers[MM(x_u)] - !x_locked }
			:: else ->
				d_step {
					x_locked = MAY_READ(MM(x_u)) && users[MM(x_u)] > 0;
					mm_readers[MM(x_u)] = mm_readers[MM(x_u)] + x_locked; users[MM(x_u)] = users[MM(x_u)] + x_locked
				}
			fi;
			if
			:: x_locked -> evict_page(x_u, d, a); d_step { mm_readers[MM(x_u)]--; users[MM(x_u)]--; x_locked = 0 }
			:: else
			fi
		:: n == 0 && pte[x_u] == DEVICE && HAS(d, pte_f[x_u]) && MM(x_u) == MM(v) && x_u != v -> evict_page(x_u, d, a)
		:: n != 0 -> d_step { put(n); n = 0 }
		:: else
		fi;
		x_u++
	:: else -> break
	od;
	x_u = 0
}

/* CPU faults */

/* Migrates page v back: frame s, which is locked. With the mmap lock. Waits only for flushes. */
inline bring_back(v, a) {
	announce(v, a, 0);
	event(v, MIGRATE, 1, a);
	unmap(v, a);
	event_end(v);
	alloc_system(n);
	finish(v, a, w)
}

/* Leaves the page, frame s, to the worker, and sleeps. The reference of the core keeps the page. */
inline sleep(v, a) {
	d_step {
		work[v]++;
		isolated[s] = 0; refs[s] = refs[s] + (off != SLEEP_REFERENCE); locked[s] = off == SLEEP_FOLIO;
		printf("%d: leaves page %d to the worker\n", a, v)
	};
	if
	:: off != SLEEP_MMAP -> mmap_read_unlock(MM(v)); x_locked = 0
	:: else
	fi;
	(work[v] == 0);
	/*
	 * The core unlocks and releases the folio after migrate_to_ram(): the lock must be taken
	 * again.
	 */
	d_step {
		!locked[s] || off == SLEEP_FOLIO ->
		assert(used[s]);
		if
		:: off == SLEEP_FOLIO -> locked[s] = 0
		:: else
		fi;
		/* The worker has migrated a page without other references back. */
		assert(!quiet || pte[v] == PRESENT);
		refs[s] = refs[s] - (off != SLEEP_REFERENCE); put(s); s = 0
	}
}

/*
 * The CPU accesses page v in device memory. With the mmap lock, which it may release if
 * x_locked.
 */
inline cpu_fault(v, a) {
	d_step {
		if
		:: pte[v] == DEVICE && locked[pte_f[v]] -> took = 1
		:: pte[v] == DEVICE && !locked[pte_f[v]] -> s = pte_f[v]; locked[s] = 1; isolated[s] = 1
		:: else
		fi
	}
	if
	:: took -> d_step { pte[v] != DEVICE || !locked[pte_f[v]] -> took = 0 }
	:: s != 0 ->
		if
		:: bring_back(v, a)
		:: WORKER && x_locked -> sleep(v, a)
		fi
	:: else
	fi
}

/* Device faults */

inline device_fault(v, d, write, a) {
	enter(v, 1);
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
			if
			:: s != 0 && (!COLLIDED(a, v) || off == RETRY) && (!moving[v] || off == INSTALL_IN_FLIGHT || ((off == INSTALL_UNMARKED || off == OPENED) && !mark[T(v, d)])) && opened[MI(MM(v), d)] ->
				entry[T(v, d)] = s; entry_w[T(v, d)] = w; warm[T(v, d)] = 1;
				printf("%d: device %d gets frame %d for page %d, write %d\n", a, d, s, v, w)
			:: else
			fi;
			s = 0; w = 0; COLLIDED(a, v) = 1; faults[W(v)]--; users[MM(v)]--; x_alive = 0
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
	bit write = 0;

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
			fi
		fi
	:: else -> break
	od;
	left--
}

proctype mover(byte a, v, d) {
	LOCALS;
	byte x_u = 0;
	if
	:: migrate(v, SYSTEM, d, 0, a)
	:: migrate(v, d, SYSTEM, 0, a)
	fi;
	left--
}

proctype round_trip(byte a, v, d) {
	LOCALS;
	byte x_u = 0;
	migrate(v, SYSTEM, d, 0, a);
	migrate(v, d, SYSTEM, 0, a);
	left--
}

/* Migrates page v from the memory of device from to that of device to. */
proctype puller(byte a, v, from, to) {
	LOCALS;
	byte x_u = 0;
	migrate(v, from, to, 0, a);
	left--
}

/* Migrates page v to device d, evicting another page if necessary. */
proctype crowd(byte a, v, d) {
	LOCALS;
	byte x_u = 0;
	migrate(v, SYSTEM, d, 1, a);
	left--
}

proctype evict(byte a, v, d) {
	LOCALS;
	d_step { x_locked = MAY_READ(MM(v)) && users[MM(v)] > 0; mm_readers[MM(v)] = mm_readers[MM(v)] + x_locked; users[MM(v)] = users[MM(v)] + x_locked }
	if
	:: x_locked -> evict_page(v, d, a); d_step { mm_readers[MM(v)]--; users[MM(v)]-- }
	:: else
	fi;
	left--
}

/* The other block of a migration: swaps its variables with those of this one. */
inline other_block() {
	d_step {
		x_i = s; s = s2; s2 = x_i;
		x_i = n; n = n2; n2 = x_i;
		x_i = ann; ann = ann2; ann2 = x_i;
		x_i = took; took = took2; took2 = x_i;
		x_i = hole; hole = hole2; hole2 = x_i;
		x_i = w; w = w2; w2 = x_i;
		x_i = x_seq; x_seq = x_seq2; x_seq2 = x_i;
		x_i = x_win2;
		x_win2 = x_win; x_win = x_i; x_own = 0
	}
}

/*
 * Migrates pages v and u to device d: while v is copied, u is announced and isolated. The
 * sequences of both are begun before any lock is taken.
 * any lock is taken.
 */
proctype pipeline(byte a, v, u, d) {
	LOCALS;
	byte s2 = 0, n2 = 0, ann2 = 0;
	bit took2 = 0, hole2 = 0, w2 = 0, x_seq2 = 0, x_win2 = 0;
	enter(v, 0);
	if
	:: x_alive ->
		d_step { NOT_LEAVING(u) -> window_make(u); migrations[W(u)]++ };
		READ_BEGIN(a, v);
		READ_BEGIN(a, u);
		mmap_read(MM(v));
		announce(v, a, 1);
		isolate_announced(v, SYSTEM, d, a);
		if
		:: !x_drop ->
			other_block();
			if
			:: off == OVERLAP_WAITS -> READ_BEGIN(a, u)
			:: off == OVERLAP_RELOCKS -> mmap_read_unlock(MM(v)); mmap_read(MM(v))
			:: off == OVERLAP_RETRY -> d_step { COLLIDED(a, u) = 0 }
			:: else
			fi;
			announce(u, a, 1);
			isolate_announced(u, SYSTEM, d, a);
			/* Dropped here: both blocks are restored. */
			other_block()
		:: else
		fi;
		finish(v, a, w);
		other_block();
		finish(u, a, w);
		d_step { migrations[W(v)]--; migrations[W(u)]--; COLLIDED(a, v) = 1; COLLIDED(a, u) = 1; mm_readers[MM(v)]--; users[MM(v)]--; x_alive = 0 }
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

/* Sets an attribute of page v, which needs a window and is removed with the mapping. */
proctype advise(byte a, v) {
	LOCALS;
	enter(v, 0);
	if
	:: x_alive ->
		mmap_read(MM(v));
		attribute[v] = vm[v];
		d_step { mm_readers[MM(v)]--; migrations[W(v)]--; users[MM(v)]--; x_alive = 0 }
	:: else
	fi;
	left--
}

/* A mirror is opened or closed at any time. */
proctype open(byte a, m, d) {
	opened[MI(m, d)] = 1;
	left--
}
proctype close(byte a, m, d) {
	LOCALS;
	byte f = 0;
	opened[MI(m, d)] = 0;
	do
	:: f < NP ->
		d_step {
			x_t = T(V(m, f), d);
			if
			:: entry[x_t] != 0 -> retire(x_t)
			:: else
			fi;
			entry[x_t] = 0; entry_w[x_t] = 0; changing[MI(m, d)]++;
			if
			:: off != CLOSED -> mark[x_t] = 0
			:: else
			fi;
			x_t = 0
		};
		flush(V(m, f), d);
		f++
	:: else -> break
	od;
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

#if NV > 1
#define OR_SECOND :: d_step { (work[1] > 0 && MAY_READ(MM(1))) -> f = 1; mm_readers[MM(1)]++ }
#else
#define OR_SECOND
#endif
/* The worker. Takes a queued page whose mmap lock is available. */
proctype worker(byte a) {
	LOCALS;
	byte f = 0;
	left--;
end:	do
	:: atomic {
			if
			:: d_step { (work[0] > 0 && MAY_READ(MM(0)) && off != WORKER_ORDER) -> f = 0; mm_readers[MM(0)]++ }
			OR_SECOND
			:: d_step { (work[0] > 0 && off == WORKER_ORDER && pte[0] == DEVICE && !locked[pte_f[0]]) -> f = 0; s = pte_f[0]; locked[s] = 1; isolated[s] = 1; x_refs = work[0] }
			fi
		};
		if
		:: off == WORKER_ORDER -> mmap_read(MM(f))
		:: else
		fi;
		d_step {
			x_alive = users[MM(f)] > 0;
			users[MM(f)] = users[MM(f)] + x_alive;
			if
			:: off != WORKER_ORDER && x_alive && pte[f] == DEVICE && !locked[pte_f[f]] ->
				s = pte_f[f]; locked[s] = 1; isolated[s] = 1; x_refs = work[f]
			:: else
			fi
		};
		if
		:: s != 0 -> bring_back(f, a)
		:: else
		fi;
		d_step {
			printf("%d: work for page %d is done\n", a, f);
			work[f] = 0; mm_readers[MM(f)]--; users[MM(f)] = users[MM(f)] - x_alive; x_alive = 0; f = 0
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
		:: i < NV * DEVICES -> assert(!mark[i] && !moving[i / DEVICES] && (entry[i] == 0 || (opened[MI(MM(i / DEVICES), i % DEVICES)] && win[W(i / DEVICES)] == LIVE))); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NW -> assert(faults[i] == 0 && migrations[i] == 0 && !invalidated[i] && win[i] != LEAVING && win[i] != REMOVED); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NB -> assert(owner[i] == 0); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NV -> assert(work[i] == 0 && (!attribute[i] || vm[i])); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < SPACES -> assert(events[i] == 0 && mm_readers[i] == 0 && mm_writers_waiting[i] == 0); i++
		:: else -> break
		od
	}
}
