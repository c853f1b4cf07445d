/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The protocol of Documentation/faultless.rst, for SPIN: a number of address spaces with NP pages
 * each, devices with a mirror of each address space, and the operations on them, one step at a
 * time.
 *
 * A step is atomic for all other processes, because of a page table lock, a table lock or an atomic
 * instruction. Between two steps of a process any other process may run. Assumptions on the core
 * are modelled like mm/: notifiers by their sequence, migration entries, folio locks and
 * references, the mmap lock.
 *
 * Contents are not stored. Each frame has a bit for each page of a process, which is set if the
 * frame contains the last write to that page. A read must find this bit set.
 *
 * OFF is a rule to break, by its name in Documentation/faultless.rst or below. SCENARIO starts
 * processes. tests/model/run generates both.
 */
#include "scenario.pml"
mtype = {
	/* The holes of faultless.rst. */
	H1, H2, H3, H4, H5, H6, H9, H10, H11, H12, H13, H14, H15,
	/*
	 * A switch restores write access before its flush, while another engine may still read
	 * the source.
	 */
	EARLY_WRITE,
	/*
	 * A mirror that has joined gets write access back after its own switch, while other
	 * mirrors may still read the source.
	 */
	JOINED_EARLY,
	/* A range fault is installed although an invalidation has begun in between (rule 1). */
	RULE1,
	/* An invalidation that finds no entry does not wait for concurrent flushes (rule 2). */
	OTHERS,
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
	/* After a pull, the source device keeps its entry. */
	PULL,
	/* A pull installs the entry of the destination before the source has lost its own. */
	SOURCE_FIRST,
	/* An unplug does not wait for steps that migrate pages to the device. */
	ARRIVALS,
	/* An unplug does not wait for steps that copy from the device. */
	DEPARTURES,
	/* A fault of an unplugged device is handled. */
	FORGET,
	/* A CPU fault on a locked page ends in SIGBUS (rule 7). */
	RULE7,
	/* A migration removes write access from pages that cannot be migrated (rule 12). */
	RULE12
};
#include "common.pml"

/* 1 + the migration that has marked the entry. */
byte mark[NV * DEVICES];
/* For each mirror, the number of invalidations in progress. */
byte invalidating[NMI];
/* Whether an invalidation has begun since read_begin of the process. */
bit collided[NACT * NMI];
/* The table lock is held over several steps, which only happens with a broken rule. */
bit table_locked[NMI];
/*
 * Unplug: no page may be migrated to the device; numbers of steps that migrate to it, and from
 * it.
 */
bit closed[DEVICES];
byte arriving[DEVICES];
byte departing[DEVICES];

#define COLLIDED(a, mi) collided[(a) * NMI + (mi)]
#define LOCALS byte x_d = 0, x_m = 0, x_mi = 0, x_t = 0, x_i = 0, x_v = 0, s = 0, n = 0; bit x_flush = 0, moved = 0, w = 0, took = 0, hole = 0, refused = 0, x_alive = 0

/* Whether the event of a, named or not, keeps the entry. */
#define KEEPS(t, named, a) ((named) && off != RULE5 && (!IS_ZERO(entry[t]) || off == ZERO_PAGE) && (mark[t] == (a) + 1 || (off == H9 && mark[t] == 0)))

/*
 * An event for page v: mmu_notifier_invalidate_range_start(). named: it has the identity of its
 * migration.
 */
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
				:: off != H3 -> mark[x_t] = 0; had_w[x_t] = 0
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

/*
 * Marks the entry of page v for a, unless it is already marked, and makes it read-only. Within a
 * step.
 */
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

/*
 * As announce(), for a mirror that has an entry, and joins the migration of another mirror or of a
 * CPU fault. Remembers whether the entry was writable. Within a step.
 */
inline join(v, d, a) {
	had_w[T(v, d)] = entry_w[T(v, d)];
	announce(v, d, a)
}

/* Switches the entry of page v, which a has migrated to n. It is read-only first. */
inline switch_entry(v, d, a, to, write) {
	d_step {
		x_flush = changing[MI(MM(v), d)] > 0 && off != OTHERS;
		if
		:: mark[T(v, d)] == (a) + 1 ->
			entry[T(v, d)] = to; entry_w[T(v, d)] = write && off == EARLY_WRITE; x_flush = 1;
			printf("%d: switches the entry of page %d of device %d to frame %d\n", a, v, d, to)
		:: else ->
			/*
			 * The mark was lost. A read-only entry may refer to the source; this
			 * also compensates for a broken H13.
			 */
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

/* Restores write access to page v, which a has migrated to n, once no engine reads the source. */
inline permit_write(v, d, a, to, write) {
	d_step {
		if
		:: mark[T(v, d)] == (a) + 1 && entry[T(v, d)] == to -> entry_w[T(v, d)] = write
		:: else
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
		/* A page without other references is migrated. */
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
		/* migrate_vma_pages() has an event of its own for holes. */
		:: hole && n != 0 -> event(v, MIGRATE, 1, a); fill_hole(v); event_end(v)
		:: hole && n == 0
		:: else -> copy()
		fi;
		if
		:: off == H15 && s != 0 -> finalize()
		:: else
		fi;
		if
		:: moved || (off == H5 && n != 0 && s != 0) || (off == H6 && n != 0 && hole) ->
			switch_entry(v, d, a, n, w);
			permit_write(v, d, a, n, w);
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

/* The CPU accesses page v in device memory. With the mmap lock. */
inline cpu_fault(v, a) {
	d_step {
		s = 0;
		if
		:: pte[v] == DEVICE && dead[MEM_OF(pte_f[v])] -> sigbus(v)
		:: pte[v] == DEVICE && !locked[pte_f[v]] && !dead[MEM_OF(pte_f[v])] ->
			s = pte_f[v]; locked[s] = 1; isolated[s] = 1; departing[MEM_OF(s)]++
		/* Another migration has locked the folio: the CPU retries. */
		:: pte[v] == DEVICE && locked[pte_f[v]] && !dead[MEM_OF(pte_f[v])] && off == RULE7 -> sigbus(v)
		:: else
		fi
	}
	if
	:: s != 0 ->
		/*
		 * Mirrors whose lock is available and that have an entry keep it. The CPU fault
		 * must not wait.
		 */
		x_m = 0;
		do
		:: x_m < DEVICES ->
			d_step {
				if
				:: HAS(x_m, s) && entry[T(v, x_m)] != 0 && (mark[T(v, x_m)] == 0 || off == H13) -> join(v, x_m, a)
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
			:: moved && HAS(x_m, s) ->
				switch_entry(v, x_m, a, n, 0);
				if
				:: off == JOINED_EARLY -> permit_write(v, x_m, a, n, w && had_w[T(v, x_m)])
				:: else
				fi
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
			fi
		};
		finalize();
		/* Each mirror leaves: its entry gets write access back, unless its mark was cleared. */
		do
		:: x_m < DEVICES ->
			d_step {
				if
				:: mark[T(v, x_m)] == (a) + 1 ->
					if
					:: moved && HAS(x_m, s) && entry[T(v, x_m)] == n -> entry_w[T(v, x_m)] = w && (had_w[T(v, x_m)] || off == H14)
					:: else
					fi;
					mark[T(v, x_m)] = 0; had_w[T(v, x_m)] = 0
				:: else
				fi
			};
			x_m++
		:: else -> break
		od;
		x_m = 0;
		d_step { departing[MEM_OF(s)]--; s = 0; n = 0; moved = 0; w = 0; took = 0 }
	:: else
	fi
}

/* A fault of device d on page v. */
inline device_fault(v, d, write, a) {
	READ_BEGIN(a, MI(MM(v), d));
	mmget_and_read(MM(v), x_alive);
	/* hmm_range_fault(), including the faults that it handles. */
	if
	:: !x_alive || !vm[v] || (write && !vm_w[v])
	:: x_alive && vm[v] && pte[v] == NONE -> populate(v)
	:: x_alive && pte[v] == DEVICE && !HAS(d, pte_f[v]) -> cpu_fault(v, a)
	:: x_alive && pte[v] == DEVICE && HAS(d, pte_f[v]) && write && !pte_w[v] ->
		d_step {
			if
			:: pte[v] == DEVICE && mapped[pte_f[v]] == 1 && !isolated[pte_f[v]] && vm_w[v] -> pte_w[v] = 1; took = 0
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

#include "actors.pml"

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

/* Evicts page v, if it is on device d, with plain events, which remove the entries. */
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

/* Removes all entries of all mirrors of device d. */
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

/*
 * Memory::unplug() of device d, after which its driver stops it: only pages that could not be
 * copied are left.
 */
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
		printf("%d: device %d was removed\n", a, d);
		f = NSYS + 1 + d * NDEV;
		do
		:: f < NSYS + 1 + (d + 1) * NDEV -> assert(!used[f] || lost[d]); f++
		:: else -> break
		od
	};
	left--
}

/* Migrates page v from the memory of device from directly to that of device d. */
proctype puller(byte a, v, from, d) {
	LOCALS;
	do
	:: READ_BEGIN(a, MI(MM(v), d));
		mmap_read(MM(v));
		d_step {
			if
			:: COLLIDED(a, MI(MM(v), d)) -> mm_readers[MM(v)]--; took = 0
			:: !COLLIDED(a, MI(MM(v), d)) && closed[d] -> mm_readers[MM(v)]--; took = 1; refused = 1
			:: else -> COLLIDED(a, MI(MM(v), d)) = 1; announce(v, d, a); took = 1; arriving[d]++; departing[from]++
			fi
		};
		if
		:: took -> break
		:: else
		fi
	od;
	if
	:: refused
	:: else ->
		if
		:: x_flush -> flush(v, d); x_flush = 0
		:: else
		fi;
		/* The source can still read, if the lock of its mirror is available. */
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
				/*
				 * Switch the entries of the source first: it must not read old
				 * contents after a write by the destination.
				 */
				if
				:: off != PULL && off != SOURCE_FIRST -> switch_entry(v, from, a, 0, 0)
				:: else
				fi;
				switch_entry(v, d, a, n, w);
				permit_write(v, d, a, n, w);
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
	fi;
	left--
}

init {
	byte i = 0, n = 0;

	d_step {
		begin();
		do
		:: i < NACT * NMI -> collided[i] = 1; i++
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
		:: i < NV * DEVICES -> assert(mark[i] == 0); i++
		:: else -> break
		od;
		i = 0;
		do
		:: i < NMI -> assert(invalidating[i] == 0); i++
		:: else -> break
		od
	}
}
