// SPDX-License-Identifier: GPL-2.0
// Two threads (one per engine) and the CPU add to the same words while the pages are migrated.

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ADD		_IOW('T', 0, uint64_t[3])
#define TO_DEVICE	_IOW('T', 1, uint64_t[3])
#define TO_SYSTEM	_IOW('T', 2, uint64_t[3])

enum { PAGES = 1024, ROUNDS = 20 };

static int fd;
static size_t page_size;
static char *memory;

/* The word that is added to, at the beginning of each page. */
static uint64_t *word(int page)
{
	return (uint64_t *)(memory + page * page_size);
}

static int call(unsigned long command, void *addr, uint64_t value, uint64_t engine)
{
	uint64_t words[3] = { (uintptr_t)addr, value, engine };
	int result = ioctl(fd, command, words);

	if (result < 0) {
		perror("ioctl");
		exit(1);
	}
	return result;
}

static void *engine(void *number)
{
	for (int round = 0; round < ROUNDS; round++)
		for (int page = 0; page < PAGES; page++)
			call(ADD, word(page), 1, (uintptr_t)number);
	return NULL;
}

int main(void)
{
	pthread_t threads[2];
	long moved = 0;
	uint64_t sum = 0;

	fd = open("/dev/rust_engines", O_RDWR);
	page_size = sysconf(_SC_PAGESIZE);
	memory = aligned_alloc(2 << 20, PAGES * page_size);
	if (fd < 0 || !memory) {
		perror("/dev/rust_engines");
		return 1;
	}
	memset(memory, 0, PAGES * page_size);
	for (uintptr_t i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, engine, (void *)i);
	for (int round = 0; round < ROUNDS; round++) {
		moved += call(TO_DEVICE, memory, PAGES, 0);
		__atomic_fetch_add(word(round), 1, __ATOMIC_RELAXED);
		moved += call(TO_SYSTEM, memory, PAGES, 0);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int page = 0; page < PAGES; page++)
		sum += *word(page);
	printf("pages moved: %s\n", moved >= PAGES ? "at least 1024" : "too few");
	printf("sum: %ju of %d\n", (uintmax_t)sum, (2 * PAGES + 1) * ROUNDS);
	return moved < PAGES || sum != (2 * PAGES + 1) * ROUNDS;
}
