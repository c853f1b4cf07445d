/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Huge pages, for SPIN: two pages of one address space that the CPU may map by one huge entry, and
 * a device whose page table has two levels: the upper one has a huge leaf for both pages, or a
 * table with an entry for each. The device walks the levels one after the other, and may be
 * interrupted in between. Everything else is as in hmm.pml, but simpler: one mirror, one device.
 *
 * Frames are pairs: that of page p in pair g is 2 * g + p. A huge page has both frames of a pair.
 */
#include "scenario.pml"
#ifndef OPS
#define OPS 2
#endif
#define NP 2
/* Pairs: 0 is none, then those of the system, then those of the device. */
#define NSYS 2
#define NDEV 2
#define NG (1 + NSYS + NDEV)
#define NF (2 * NG)
#define ON_SYSTEM(f) ((f) < 2 * (1 + NSYS))
#define PAIR(f) ((f) / 2)
/* The first and the last pair of the device, or of the system. */
#define FIRST(to_device) (1 + NSYS * (to_device))
#define LAST(to_device) (1 + NSYS + NDEV * (to_device))

mtype = { EVERY_RULE_HOLDS,
	/* A huge leaf is switched as a whole, although only one of its pages was migrated (H5). */
	RUNS,
	/* A leaf is split by a table that the device can see before it has entries (rule 13). */
	RULE13,
	/*
	 * A table that was replaced by a leaf is freed before the device has stopped using it
	 * (rule 13).
	 */
	TABLES,
	/* The removal of one page of a huge leaf keeps the leaf. */
	PARTS,
	/* A flush does not wait for accesses. */
	RULE2
};
mtype = { NONE, PRESENT, MIGRATING, DEVICE };
mtype off = OFF;

/* The CPU page table: the entry of each page; whether both pages have one huge entry. */
mtype pte[NP] = NONE;
byte pte_f[NP];
bit huge;
bit used[NF];
bit locked[NF];
/* Ghost: the frame contains the last write to its page. */
bit fresh[NF];
byte mm_readers;

/* The device page table: the upper level has a table, a leaf for a pair, or nothing. */
mtype = { EMPTY, LEAF, TABLE };
mtype top = EMPTY;
byte top_g;
bit top_w;
byte top_t;
/* Two tables, because a replaced one stays in use until a flush. */
bit table_used[2];
byte child[2 * NP];
bit child_w[2 * NP];
byte mark[NP];
byte changing;
byte invalidating;
bit collided[4];
/* Walks and accesses in progress, by engine. */
bit busy[NP];
bit warm[NP];
bit quiet;
/* A table is incomplete for some steps, only with a broken rule. */
bit gap;
byte left;

#define LOCALS byte x_i = 0, x_p = 0, x_table = 0, s[2] = 0, n[2] = 0; bit x_flush = 0, one = 0, ok = 0, moved[2] = 0

inline put(f) { used[f] = 0; fresh[f] = 0; locked[f] = 0 }

/* The device's entry for page p, as seen with the table lock held. */
#define CHILD(p) child[2 * top_t + (p)]
#define CHILD_W(p) child_w[2 * top_t + (p)]
#define ENTRY(p) (top == LEAF -> 2 * top_g + (p) : (top == TABLE -> CHILD(p) : 0))
#define WRITABLE(p) (top == LEAF -> top_w : (top == TABLE -> CHILD_W(p) : 0))

inline free_table(t) { table_used[t] = 0; child[2 * (t)] = 0; child[2 * (t) + 1] = 0; child_w[2 * (t)] = 0; child_w[2 * (t) + 1] = 0 }

/* Waits until the device has stopped using outdated translations and removed tables. */
inline flush() {
	((!busy[0] && !busy[1]) || off == RULE2 || (off == TABLES && x_table != 0));
	d_step {
		changing--;
		if
		:: x_table != 0 -> free_table(x_table - 1); x_table = 0
		:: else
		fi;
		x_flush = 0
	}
}

/*
 * Allocates a table, if one is free, as top_t, not linked yet. With the table lock, and without
 * a linked table.
 */
inline alloc_table() {
	if
	:: !table_used[0] -> table_used[0] = 1; top_t = 0; x_i = 1
	:: table_used[0] && !table_used[1] -> table_used[1] = 1; top_t = 1; x_i = 1
	:: else -> x_i = 0
	fi
}

/*
 * Replaces a leaf by a table with the same entries, linked once it is complete, or removes it.
 * With the table lock.
 */
inline split_leaf() {
	if
	:: top == LEAF ->
		d_step {
			alloc_table();
			if
			:: x_i == 0 -> top = EMPTY; x_flush = 1
			:: x_i != 0 && off != RULE13 -> CHILD(0) = 2 * top_g; CHILD(1) = 2 * top_g + 1; CHILD_W(0) = top_w; CHILD_W(1) = top_w; top = TABLE
			:: x_i != 0 && off == RULE13 -> top = TABLE; gap = 1
			fi;
			x_i = 0
		};
		if
		:: gap ->
			/* The device walks concurrently. */
			(!gap);
			d_step { CHILD(0) = 2 * top_g; CHILD(1) = 2 * top_g + 1; CHILD_W(0) = top_w; CHILD_W(1) = top_w }
		:: else
		fi;
		d_step { top_g = 0; top_w = 0 }
	:: else
	fi
}

/* Sets the entry of page p, splitting a leaf. With the table lock. */
inline set_entry(p, f, w) {
	split_leaf();
	if
	:: top == TABLE -> CHILD(p) = f; CHILD_W(p) = w
	:: else
	fi
}

/*
 * A foreign event for pages first to last: removes entries and marks. The rest of a leaf is
 * kept.
 */
inline event(first, last) {
	atomic {
		invalidating++;
		collided[0] = 1; collided[1] = 1; collided[2] = 1; collided[3] = 1;
		x_flush = changing > 0;
		x_p = first;
		do
		:: x_p <= last -> mark[x_p] = 0; x_flush = x_flush || ENTRY(x_p) != 0; x_p++
		:: else -> break
		od;
		x_p = 0;
		if
		:: top == LEAF && first != last && off != PARTS -> top = EMPTY; top_g = 0; top_w = 0
		:: top == TABLE && first != last -> top = EMPTY; x_table = top_t + 1; top_t = 0; x_flush = 1
		:: first == last && !(top == LEAF && off == PARTS) -> set_entry(first, 0, 0)
		:: else
		fi;
		changing = changing + x_flush;
		printf("event about pages %d to %d, the device has %d and %d\n", first, last, ENTRY(0), ENTRY(1))
	};
	if
	:: x_flush -> flush()
	:: else
	fi
}

/* Splits the CPU's huge entry. */
inline split_cpu() {
	huge = 0
}

/* Allocates a frame of a pair from first on, for page p. */
inline alloc(f, p, first, end) {
	d_step {
		f = first;
		do
		:: f < (end) && used[2 * f + (p)] -> f++
		:: else -> break
		od;
		if
		:: f < (end) -> f = 2 * f + (p); used[f] = 1
		:: else -> f = 0
		fi
	}
}

/* Migrates pages first to last to the device or back. Of a huge page, both or one. */
inline migrate(to_device, first, last, a) {
	do
	:: d_step { invalidating == 0 -> collided[a] = 0 };
		atomic {
			mm_readers++;
			if
			:: collided[a] -> mm_readers--; ok = 0
			:: else ->
				/* Mark unmarked pages, and remove write access. */
				ok = 1;
				x_p = first;
				do
				:: x_p <= last ->
					if
					:: mark[x_p] == 0 -> mark[x_p] = a + 1
					:: else
					fi;
					x_flush = x_flush || WRITABLE(x_p);
					x_p++
				:: else -> break
				od;
				x_p = 0;
				if
				:: x_flush && first == last -> split_leaf()
				:: else
				fi;
				if
				:: top == LEAF -> top_w = 0
				:: top == TABLE && first == last -> CHILD_W(first) = 0
				:: top == TABLE && first != last -> CHILD_W(0) = 0; CHILD_W(1) = 0
				:: else
				fi;
				changing = changing + x_flush;
				printf("%d: announced pages %d to %d\n", a, first, last)
			fi
		};
		if
		:: ok -> break
		:: else
		fi
	od;
	if
	:: x_flush -> flush()
	:: else
	fi;
	/* The own event: keep entries with our mark, and remove the others. */
	atomic {
		invalidating++;
		collided[0] = 1; collided[1] = 1; collided[2] = 1; collided[3] = 1;
		x_p = first;
		do
		:: x_p <= last ->
			if
			:: ENTRY(x_p) != 0 && mark[x_p] != a + 1 -> x_flush = 1; set_entry(x_p, 0, 0)
			:: else
			fi;
			x_p++
		:: else -> break
		od;
		x_p = 0;
		changing = changing + x_flush
	};
	if
	:: x_flush -> flush()
	:: else
	fi;
	/*
	 * Isolate a huge page as a whole, or each page, unless it is locked; isolating one of
	 * its pages splits it.
	 */
	d_step {
		one = huge && first != last;
		if
		:: huge && first == last && (pte[first] == PRESENT || pte[first] == DEVICE) -> split_cpu()
		:: else
		fi;
		x_p = first;
		do
		:: x_p <= last ->
			if
			:: ((to_device && pte[x_p] == PRESENT) || (!(to_device) && pte[x_p] == DEVICE)) && !locked[pte_f[x_p]] ->
				s[x_p] = pte_f[x_p]; locked[s[x_p]] = 1; pte[x_p] = MIGRATING
			:: else
			fi;
			x_p++
		:: else -> break
		od;
		x_p = 0;
		invalidating--;
		printf("%d: isolates frames %d and %d\n", a, s[0], s[1])
	};
	/* A huge destination, or small ones, which split a huge source. */
	if
	:: one && s[0] != 0 ->
		d_step {
			x_i = FIRST(to_device);
			do
			:: x_i < LAST(to_device) && (used[2 * x_i] || used[2 * x_i + 1]) -> x_i++
			:: else -> break
			od;
			if
			:: x_i < LAST(to_device) -> n[0] = 2 * x_i; n[1] = 2 * x_i + 1; used[n[0]] = 1; used[n[1]] = 1
			:: else
			fi;
			x_i = 0
		}
	:: one = 0
	fi;
	if
	:: !one || n[0] == 0 ->
		one = 0;
		if
		:: s[0] != 0 -> alloc(n[0], 0, FIRST(to_device), LAST(to_device))
		:: else
		fi;
		if
		:: s[1] != 0 -> alloc(n[1], 1, FIRST(to_device), LAST(to_device))
		:: else
		fi;
		split_cpu()
	:: else
	fi;
	/* Copies, which may fail; of a huge page both or none. */
	if
	:: s[0] != 0 && n[0] != 0 -> d_step { fresh[n[0]] = fresh[s[0]]; locked[n[0]] = 1; moved[0] = 1; printf("%d: copy of frame %d to %d\n", a, s[0], n[0]) }
	:: skip
	fi;
	if
	:: s[1] != 0 && n[1] != 0 && (!one || moved[0]) -> d_step { fresh[n[1]] = fresh[s[1]]; locked[n[1]] = 1; moved[1] = 1; printf("%d: copy of frame %d to %d\n", a, s[1], n[1]) }
	:: !one || !moved[0]
	fi;
	/*
	 * The switch. A leaf whose pages were migrated as a whole, and are both marked, stays a
	 * leaf.
	 */
	atomic {
		x_flush = changing > 0;
		if
		:: top == LEAF && (moved[0] || moved[1]) && ((one && mark[0] == a + 1 && mark[1] == a + 1) || off == RUNS) ->
			top_g = (moved[0] -> PAIR(n[0]) : PAIR(n[1])); x_flush = 1
		:: else ->
			x_p = first;
			do
			:: x_p <= last ->
				if
				:: moved[x_p] && ENTRY(x_p) != 0 && mark[x_p] == a + 1 -> set_entry(x_p, n[x_p], 0); x_flush = 1
				:: moved[x_p] && ENTRY(x_p) != 0 && mark[x_p] != a + 1 && !WRITABLE(x_p) ->
					set_entry(x_p, 0, 0); x_flush = 1
				:: else
				fi;
				x_p++
			:: else -> break
			od;
			x_p = 0
		fi;
		changing = changing + x_flush;
		printf("%d: switched, the device has %d and %d\n", a, ENTRY(0), ENTRY(1))
	};
	if
	:: x_flush -> flush()
	:: else
	fi;
	/* migrate_vma_finalize(), and the end. */
	d_step {
		x_p = first;
		do
		:: x_p <= last ->
			if
			:: s[x_p] != 0 && pte[x_p] == MIGRATING && pte_f[x_p] == s[x_p] && moved[x_p] ->
				put(s[x_p]); pte_f[x_p] = n[x_p]; locked[n[x_p]] = 0; n[x_p] = 0
			:: s[x_p] != 0 && pte[x_p] == MIGRATING && pte_f[x_p] == s[x_p] && !moved[x_p] -> locked[s[x_p]] = 0
			/* The page was unmapped concurrently. */
			:: s[x_p] != 0 && !(pte[x_p] == MIGRATING && pte_f[x_p] == s[x_p]) -> put(s[x_p])
			:: else
			fi;
			if
			:: pte[x_p] == MIGRATING && s[x_p] != 0 -> pte[x_p] = (ON_SYSTEM(pte_f[x_p]) -> PRESENT : DEVICE)
			:: else
			fi;
			if
			:: n[x_p] != 0 -> put(n[x_p])
			:: else
			fi;
			if
			:: mark[x_p] == a + 1 -> mark[x_p] = 0
			:: else
			fi;
			s[x_p] = 0; n[x_p] = 0; moved[x_p] = 0;
			x_p++
		:: else -> break
		od;
		printf("%d: finalized, the CPU has %d and %d\n", a, pte_f[0], pte_f[1]);
		x_p = 0; one = 0; ok = 0;
		mm_readers--
	}
}

/* A fault of the device on page p: installs a leaf if the CPU has a huge entry. */
inline device_fault(p, write, a) {
	d_step { invalidating == 0 -> collided[a] = 0 };
	d_step {
		mm_readers++;
		if
		:: pte[p] == NONE ->
			/* A small zeroed page, which counts as the last write. */
			x_i = 1;
			do
			:: x_i < 1 + NSYS && used[2 * x_i + p] -> x_i++
			:: else -> break
			od;
			if
			:: x_i < 1 + NSYS -> pte[p] = PRESENT; pte_f[p] = 2 * x_i + p; used[2 * x_i + p] = 1; fresh[2 * x_i + p] = 1
			:: else
			fi;
			x_i = 0
		:: else
		fi;
		if
		/* Small pages of the same pair are equivalent to a huge page. */
		:: pte[p] == PRESENT || pte[p] == DEVICE -> s[p] = pte_f[p]; one = (pte[0] == pte[1] && PAIR(pte_f[0]) == PAIR(pte_f[1]))
		:: else
		fi;
		mm_readers--
	};
	atomic {
		if
		:: s[p] != 0 && !collided[a] && mark[p] == 0 ->
			one = one && mark[1 - p] == 0;
			if
			/* Replace a table, which is freed after a flush. */
			:: one ->
				x_table = (top == TABLE -> top_t + 1 : 0);
				x_flush = x_table != 0 || (top == LEAF && top_g != PAIR(s[p]));
				top_w = write || (top == LEAF && top_w);
				top_g = PAIR(s[p]); top = LEAF; top_t = 0
			:: !one && top != EMPTY -> x_flush = (ENTRY(p) != 0 && ENTRY(p) != s[p]); ok = (write || WRITABLE(p)); set_entry(p, s[p], ok); ok = 0
			:: !one && top == EMPTY ->
				alloc_table();
				if
				:: x_i != 0 -> CHILD(p) = s[p]; CHILD_W(p) = write; top = TABLE
				:: else
				fi;
				x_i = 0
			fi;
			changing = changing + x_flush;
			warm[p] = warm[p] || ENTRY(p) != 0; warm[1 - p] = warm[1 - p] || one;
			printf("%d: the device has %d and %d\n", a, ENTRY(0), ENTRY(1))
		:: else
		fi;
		s[p] = 0; one = 0; collided[a] = 1
	};
	if
	:: x_flush -> flush()
	:: else
	fi
}

/* An engine that accesses page p. */
proctype engine(byte a, p) {
	LOCALS;
	byte f = 0, ops = 0, below = 0;
	bit write = 0, was_warm = 0;

	do
	:: ops < OPS ->
		ops++;
		if
		:: write = 0
		:: write = 1
		fi;
		/* Walk the table, one level at a time. */
		d_step {
			if
			:: top == LEAF && (!write || top_w) -> f = 2 * top_g + p; busy[p] = 1
			:: top == TABLE -> below = top_t + 1; busy[p] = 1; was_warm = warm[p]
			:: else -> assert(!quiet || write || !warm[p])
			fi
		};
		if
		:: below != 0 ->
			d_step {
				below--;
				assert(table_used[below]);
				if
				:: child[2 * below + p] != 0 && (!write || child_w[2 * below + p]) -> f = child[2 * below + p]
				:: else -> busy[p] = 0; assert(!quiet || write || !was_warm)
				fi;
				below = 0; was_warm = 0
			}
		:: else
		fi;
		if
		:: f != 0 ->
			d_step {
				if
				:: write ->
					printf("%d: the device writes frame %d\n", a, f);
					x_i = 2;
					do
					:: x_i < NF ->
						if
						:: x_i % 2 == p -> fresh[x_i] = 0
						:: else
						fi;
						x_i++
					:: else -> break
					od;
					x_i = 0;
					fresh[f] = 1
				:: else -> printf("%d: the device reads frame %d\n", a, f); assert(fresh[f])
				fi;
				assert(used[f]);
				busy[p] = 0; f = 0
			}
		:: else -> device_fault(p, write, a)
		fi
	:: else -> break
	od;
	left--
}

proctype mover(byte a, first, last) {
	LOCALS;
	if
	:: migrate(1, first, last, a)
	:: migrate(0, first, last, a)
	fi;
	left--
}

proctype round_trip(byte a, first, last) {
	LOCALS;
	migrate(1, first, last, a);
	migrate(0, first, last, a);
	left--
}

/* madvise(MADV_DONTNEED) of page p. Splits a huge entry first. */
proctype dontneed(byte a, p) {
	LOCALS;
	if
	:: huge -> event(0, 1); d_step { split_cpu(); invalidating-- }
	:: else
	fi;
	event(p, p);
	d_step {
		if
		:: pte[p] == PRESENT || pte[p] == DEVICE -> put(pte_f[p])
		:: else
		fi;
		pte[p] = NONE; pte_f[p] = 0;
		x_i = 2;
		do
		:: x_i < NF ->
			if
			:: x_i % 2 == p -> fresh[x_i] = 0
			:: else
			fi;
			x_i++
		:: else -> break
		od;
		x_i = 0;
		invalidating--
	};
	left--
}

proctype end_of_gap() {
end:	do
	:: gap -> gap = 0
	od
}

init {
	byte i = 0;
	d_step {
		collided[0] = 1; collided[1] = 1; collided[2] = 1; collided[3] = 1;
#ifdef ON_DEVICE
		i = 1 + NSYS;
		pte[0] = DEVICE; pte[1] = DEVICE;
		top = LEAF; top_g = i; top_w = 1; warm[0] = 1; warm[1] = 1;
#else
		i = 1;
		pte[0] = PRESENT; pte[1] = PRESENT;
#endif
		pte_f[0] = 2 * i; pte_f[1] = 2 * i + 1;
#ifndef SMALL
		huge = 1;
#endif
		used[2 * i] = 1; used[2 * i + 1] = 1; fresh[2 * i] = 1; fresh[2 * i + 1] = 1;
		i = 0
	};
	atomic {
		if
		:: off == RULE13 -> run end_of_gap()
		:: else
		fi;
		SCENARIO
	};
	/* If no process can continue before all have ended, one waits for ever. */
	if
	:: left == 0
	:: timeout -> assert(left == 0)
	fi;
	d_step {
		do
		:: i < NP ->
			assert(pte[i] != MIGRATING && (pte[i] == NONE || (used[pte_f[i]] && fresh[pte_f[i]])) && mark[i] == 0 && !busy[i]);
			i++
		:: else -> break
		od;
		i = 2;
		do
		:: i < NF -> assert(!locked[i] && used[i] == (pte_f[i % 2] == i)); i++
		:: else -> break
		od;
		assert(changing == 0 && invalidating == 0 && mm_readers == 0 && table_used[0] == (top == TABLE && top_t == 0) && table_used[1] == (top == TABLE && top_t == 1))
	}
}
