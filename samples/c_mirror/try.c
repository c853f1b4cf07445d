// SPDX-License-Identifier: GPL-2.0
// Uses the driver: the device sums and fills memory of this process, in system and device memory.

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { SUM = 0, FILL = 2, MIGRATE = 5 };
enum { PAGES = 4 };

/* The driver's struct request, with the first member of struct rust_hmm_outcome. */
struct request {
	uint64_t addr, pages, arg, out, moved;
};

static struct request call(int fd, unsigned int nr, void *addr, uint64_t value)
{
	struct request request = { .addr = (uintptr_t)addr, .pages = PAGES, .out = value };

	if (ioctl(fd, _IOWR('C', nr, struct request), &request) < 0) {
		perror("ioctl");
		exit(1);
	}
	return request;
}

int main(void)
{
	int fd = open("/dev/hmm_c_mirror", O_RDWR);
	size_t page = sysconf(_SC_PAGESIZE);
	size_t count = PAGES * page / sizeof(uint64_t);
	uint64_t *words = aligned_alloc(page, PAGES * page);
	uint64_t sum;

	if (fd < 0 || !words) {
		perror("/dev/hmm_c_mirror");
		return 1;
	}
	for (size_t i = 0; i < count; i++)
		words[i] = 1;
	printf("sum in system memory: %ju\n", (uintmax_t)call(fd, SUM, words, 0).out);
	printf("pages moved to the device: %ju\n", (uintmax_t)call(fd, MIGRATE, words, 0).moved);
	call(fd, FILL, words, 2);
	/* A CPU fault migrates the page back. */
	printf("the first word, filled by the device: %ju\n", (uintmax_t)words[0]);
	sum = call(fd, SUM, words, 0).out;
	printf("sum in both memories: %ju\n", (uintmax_t)sum);
	return sum != 2 * count;
}
