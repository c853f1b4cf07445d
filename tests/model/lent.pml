/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A CPU fault on a huge page of private device memory that comes back in small pages, for SPIN: rust/lent.c. The fault drops its
 * reference while the core splits the page, and takes it again afterwards. The huge page has two pages. Up to two processes map
 * it, the faulting one as number 0.
 *
 * A step is a section under a page table lock, or one atomic instruction on a reference count or a page lock. Freeing a page takes
 * two: free_zone_device_folio() begins when the last reference is gone, and calls folio_free() later.
 *
 * Left out is a huge entry that another thread makes small ones before the core has found it: see rust/lent.c.
 */
#include "scenario.pml"
mtype = { EVERY_RULE_HOLDS,
	/* The fault keeps its reference while the core splits the page. */
	LENT,
	/* A page that is freed while it is lent is given to others. */
	LENT_KEPT,
	/* The fault becomes the owner of a freed page before folio_free() was called for it. */
	LENT_WAITS
};
mtype off = OFF;

#ifndef MAPPERS
#define MAPPERS 1
#endif
byte left;

/* Entries of each process, two each: a huge one of the device if huge, else small ones. */
mtype = { NONE, DEVICE, MIGRATING, PRESENT };
mtype pte[4] = NONE;
bit huge[2];
#define E(m, p) pte[2 * (m) + (p)]

/* Pages of the device: both are one folio, of which the first one has lock and references; references; lock; in use. */
bit whole = 1;
byte ref[2];
bit locked[2];
bit used[2] = 1;
/* free_zone_device_folio() has begun and has not called folio_free(). */
bit freeing[2];
/* References of the pagemap: one for each page that is in use. */
byte pagemap = 2;
/* The reference of the first page is lent; it was freed meanwhile. */
bit lent;
bit freed;
/* Only the fault happens, so that it brings the page back. */
bit quiet;

#define MAPPED(p) ((E(0, p) == DEVICE) + (E(1, p) == DEVICE))

/* Drops a reference of page p, and frees it if that was the last one. */
#define LOCALS bit last = 0, kept = 0; byte nr = 0
inline put(p) {
	d_step { assert(ref[p] > 0); ref[p]--; last = ref[p] == 0 }
	if
	:: last ->
		d_step {
			assert(used[p] && !freeing[p]);
			freeing[p] = 1; last = 0;
			nr = 1 + (whole && p == 0);
			printf("page %d has no reference any more\n", p)
		};
		/* folio_free() */
		d_step {
			assert(used[p] && ref[p] == 0);
			freeing[p] = 0;
			kept = lent && p == 0 && locked[p];
			printf("folio_free() of page %d, which is lent: %d\n", p, kept);
			if
			:: kept -> freed = 1
			:: else
			fi;
			if
			:: !kept || off == LENT_KEPT ->
				used[p] = 0;
				if
				:: nr == 2 -> used[1] = 0; whole = 0
				:: else
				fi
			:: else
			fi;
			kept = 0
		};
		d_step { assert(pagemap >= nr); pagemap = pagemap - nr; nr = 0 }
	:: else
	fi
}

/* split_folio() with the first page locked, and a reference of the caller's. Drops that. */
inline split() {
	/* unmap_folio(), if nobody else has a reference: entries become small ones, and those of a migration. */
	d_step {
		ok = whole && MAPPED(0) > 0 && ref[0] == MAPPED(0) + 1;
		printf("a split begins: %d\n", ok)
	};
	if
	:: ok ->
		m = 0;
		do
		:: m < MAPPERS ->
			d_step {
				if
				:: huge[m] && E(m, 0) == DEVICE -> huge[m] = 0; E(m, 0) = MIGRATING; E(m, 1) = MIGRATING; ref[0]--
				:: else
				fi
			};
			m++
		:: else -> break
		od;
		m = 0;
		/* The count is frozen, and there is one for each page. */
		d_step {
			ok = ref[0] == 1;
			if
			:: ok -> whole = 0; ref[1] = 1; locked[1] = 1; printf("the page is split\n")
			:: else
			fi
		};
		/* remap_page() */
		do
		:: m < MAPPERS ->
			d_step {
				if
				:: E(m, 0) == MIGRATING -> E(m, 0) = DEVICE; ref[0]++
				:: else
				fi
			};
			d_step {
				if
				:: ok && E(m, 1) == MIGRATING -> E(m, 1) = DEVICE; ref[1]++
				:: !ok && E(m, 1) == MIGRATING -> E(m, 1) = DEVICE; ref[0]++
				:: else
				fi
			};
			m++
		:: else -> break
		od;
		m = 0;
		if
		:: ok -> locked[1] = 0; put(1)
		:: else
		fi
	:: else
	fi;
	put(0)
}

/* The CPU of process 0 touches the huge page. */
proctype fault() {
	LOCALS;
	bit ok = 0, mine = 0;
	bit isolated[2] = 0;
	byte m = 0, p = 0;

	/* do_huge_pmd_device_private() */
	d_step {
		if
		:: huge[0] && E(0, 0) == DEVICE && !locked[0] -> locked[0] = 1; ref[0]++; mine = 1
		:: else
		fi
	};
	if
	:: mine ->
		/* rust_hmm_setup_split() */
		lent = 1;
		if
		:: off != LENT -> put(0)
		:: else
		fi;
		/* migrate_vma_collect_huge_pmd() */
		d_step {
			ok = huge[0] && E(0, 0) == DEVICE;
			ref[0] = ref[0] + ok
		};
		if
		:: ok -> split()
		:: else
		fi;
		/* migrate_vma_collect_pmd(), under one lock. */
		d_step {
			do
			:: p < 2 ->
				if
				:: !huge[0] && !whole && E(0, p) == DEVICE && (p == 0 || !locked[p]) ->
					locked[p] = 1; isolated[p] = 1; E(0, p) = MIGRATING;
					/* try_to_migrate() for other mappings. The reference of this one is that of the migration from now on. */
					if
					:: E(1, p) == DEVICE -> E(1, p) = MIGRATING; ref[p]--
					:: else
					fi
				:: else
				fi;
				p++
			:: else -> break
			od;
			p = 0
		};
		/* The reference is taken again. */
		if
		:: off == LENT
		:: off != LENT ->
			d_step {
				last = ref[0] == 0;
				ref[0] = ref[0] + !last
			};
			if
			:: last ->
				/* Is woken by folio_free(). */
				(freed || off == LENT_WAITS || off == LENT_KEPT);
				d_step {
					nr = 1 + whole; last = 0;
					pagemap = pagemap + nr; nr = 0; ref[0] = 1;
					printf("the fault owns page 0 again\n")
				}
			:: else
			fi
		fi;
		lent = 0;
		/* migrate_vma_finalize() */
		do
		:: p < 2 ->
			if
			:: isolated[p] ->
				d_step {
					assert(used[p] && locked[p]);
					isolated[p] = 0;
					if
					:: E(0, p) == MIGRATING -> E(0, p) = PRESENT
					:: else
					fi;
					if
					:: E(1, p) == MIGRATING -> E(1, p) = PRESENT
					:: else
					fi;
					/* That of the fault is unlocked by the core. */
					locked[p] = p == 0
				};
				put(p)
			:: else
			fi;
			p++
		:: else -> break
		od;
		p = 0;
		/* do_huge_pmd_device_private() */
		d_step { assert(used[0] && locked[0]); locked[0] = 0 };
		put(0);
		assert(!quiet || (E(0, 0) == PRESENT && E(0, 1) == PRESENT))
	:: else
	fi;
	left--
}

/* Process m drops the page: MADV_DONTNEED of another thread, munmap() or exit of another process. */
proctype drop(byte m) {
	LOCALS;
	bit one = 0, two = 0;

	/* A huge entry in one step, which fails if it has become small ones. */
	d_step {
		if
		:: huge[m] -> huge[m] = 0; one = E(m, 0) == DEVICE; E(m, 0) = NONE; E(m, 1) = NONE; two = 1
		:: else
		fi
	};
	if
	:: one -> put(0); one = 0
	:: else
	fi;
	if
	:: !two ->
		/* Small ones: while the page is whole, each has a reference of the whole. */
		d_step { one = E(m, 0) == DEVICE; E(m, 0) = NONE };
		if
		:: one -> put(0); one = 0
		:: else
		fi;
		d_step { one = E(m, 1) == DEVICE; two = whole; E(m, 1) = NONE };
		if
		:: one && two -> put(0)
		:: one && !two -> put(1)
		:: else
		fi
	:: else
	fi;
	left--
}

/* Takes a reference of the page by its number, as one that looks for who maps it. */
proctype look() {
	LOCALS;
	bit mine = 0;

	d_step { mine = ref[0] > 0; ref[0] = ref[0] + mine };
	if
	:: mine ->
		d_step {
			mine = !locked[0];
			locked[0] = locked[0] || mine
		};
		if
		:: mine -> locked[0] = 0
		:: else
		fi;
		put(0)
	:: else
	fi;
	left--
}

/* Allocates the first page if it is free, and frees it again. */
proctype allocate() {
	LOCALS;

	if
	:: d_step {
			!used[0] ->
			assert(!locked[0] && ref[0] == 0);
			used[0] = 1; pagemap++; ref[0] = 1; locked[0] = 1;
			printf("the page is allocated anew\n")
		};
		d_step { assert(locked[0] && used[0]); locked[0] = 0 };
		put(0)
	:: skip
	fi;
	left--
}

init {
	d_step {
		huge[0] = 1; E(0, 0) = DEVICE; E(0, 1) = DEVICE; ref[0] = 1;
#if MAPPERS > 1
		huge[1] = 1; E(1, 0) = DEVICE; E(1, 1) = DEVICE; ref[0] = 2
#endif
	};
	atomic { SCENARIO };
	/* If nothing can go on before that, a process waits for ever. */
	if
	:: left == 0
	:: timeout -> assert(left == 0)
	fi;
	d_step {
		assert(!locked[0] && !locked[1] && !freeing[0] && !freeing[1] && !lent);
		assert(pagemap == used[0] + used[1]);
		assert(E(0, 0) != MIGRATING && E(0, 1) != MIGRATING && E(1, 0) != MIGRATING && E(1, 1) != MIGRATING);
		/* What is in use is mapped, and has as many references. */
		if
		:: whole -> assert(used[0] && ref[0] == huge[0] + huge[1] + (!huge[0]) * (E(0, 0) == DEVICE) + (!huge[0]) * (E(0, 1) == DEVICE) + (!huge[1]) * (E(1, 0) == DEVICE) + (!huge[1]) * (E(1, 1) == DEVICE))
		:: else -> assert(ref[0] == MAPPED(0) && ref[1] == MAPPED(1) && used[0] == (ref[0] > 0) && used[1] == (ref[1] > 0))
		fi
	}
}
