// SPDX-License-Identifier: GPL-2.0
// Uses the driver: the device and the CPU add to the same word, wherever its page is.

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ADD		_IOW('T', 0, uint64_t[2])
#define TO_DEVICE	_IOW('T', 1, uint64_t[2])
#define TO_SYSTEM	_IOW('T', 2, uint64_t[2])

static int call(int fd, unsigned long command, void *addr, uint64_t value)
{
	uint64_t words[2] = { (uintptr_t)addr, value };
	int result = ioctl(fd, command, words);

	if (result < 0) {
		perror("ioctl");
		exit(1);
	}
	return result;
}

int main(void)
{
	int fd = open("/dev/rust_template", O_RDWR);
	size_t page = sysconf(_SC_PAGESIZE);
	uint64_t *word = aligned_alloc(page, page);

	if (fd < 0 || !word) {
		perror("/dev/rust_template");
		return 1;
	}
	*word = 30;
	call(fd, ADD, word, 6);
	printf("added in system memory, without a copy: %ju\n", (uintmax_t)*word);
	printf("pages that moved to the device: %d\n", call(fd, TO_DEVICE, word, 1));
	call(fd, ADD, word, 6);
	printf("pages that moved back: %d\n", call(fd, TO_SYSTEM, word, 1));
	printf("pages that moved to the device: %d\n", call(fd, TO_DEVICE, word, 1));
	/* A CPU fault migrates the page back. */
	printf("in the end: %ju\n", (uintmax_t)*word);
	return *word == 42 ? 0 : 1;
}
