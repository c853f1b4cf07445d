/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Fences, for SPIN: which operations of an engine may have a dma_fence. Reclaim may wait for a
 * dma_fence, and so may an invalidation, with the mmap lock held. Signalling it must therefore need
 * neither memory nor that lock. An operation that faults needs both, so that a program waits for it
 * without holding a lock.
 */
#include "scenario.pml"
mtype = { EVERY_RULE_HOLDS,
	/* An operation that faults has a dma_fence, too (rule 14). */
	RULE14
};
mtype off = OFF;

#ifndef FREE
#define FREE 1
#endif
byte left;
/* Number of free pages. */
byte free = FREE;
/* The mmap lock. */
byte mm_readers;
bit mm_writer;
/*
 * For each operation: it has a dma_fence; it has ended, which signals the dma_fence and all
 * other notifications.
 */
bit exported[2];
bit over[2];

/* dma_fence_wait() for each existing dma_fence. */
#define FENCES_SIGNALLED ((!exported[0] || over[0]) && (!exported[1] || over[1]))

/*
 * A copy by hardware between pages that are pinned or already isolated, which needs no further
 * resources.
 */
proctype copy(byte o) {
	atomic { exported[o] = 1; printf("operation %d, a copy, has a dma_fence\n", o) };
	atomic { over[o] = 1; printf("operation %d is over\n", o) };
	left--
}

/* An operation whose engine finds no translation: a device fault, which allocates a page. */
proctype faulting(byte o) {
	atomic {
		if
		:: off == RULE14 -> exported[o] = 1; printf("operation %d, which faults, has a dma_fence\n", o)
		:: else
		fi
	};
	atomic { !mm_writer -> mm_readers++; printf("operation %d faults: it takes the mmap lock for reading\n", o) };
	atomic { free > 0 -> free--; printf("its fault allocates a page\n") };
	mm_readers--;
	atomic { over[o] = 1; printf("operation %d is over\n", o) };
	/* The page is freed later. */
	free++;
	left--
}

/* munmap() of memory mapped by a driver: its invalidation waits for the users of the memory. */
proctype unmapper() {
	atomic { mm_readers == 0 && !mm_writer -> mm_writer = 1; printf("munmap() takes the mmap lock, and waits for all dma_fences\n") };
	FENCES_SIGNALLED;
	mm_writer = 0;
	left--
}

/*
 * A task that allocates the last page and reclaims: the shrinker of a driver waits for the users
 * of its buffers.
 */
proctype reclaim() {
	atomic { free > 0 -> free--; printf("reclaim begins and waits for all dma_fences\n") };
	FENCES_SIGNALLED;
	free++;
	left--
}

/* A program that waits for the result with an eventfd or poll(), without a lock. */
proctype program(byte o) {
	over[o];
	left--
}

init {
	atomic { SCENARIO };
	/* If no process can continue before all have ended, one waits for ever. */
	if
	:: left == 0
	:: timeout -> assert(left == 0)
	fi;
	assert(free == FREE && mm_readers == 0 && !mm_writer && over[1])
}
