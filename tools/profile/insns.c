// SPDX-License-Identifier: GPL-2.0
/*
 * QEMU plugin: counts the executions of each translated block between two markers, and writes
 * "address instructions runs" for each block when QEMU exits. A marker is a no-op that compilers
 * do not generate, "xchg %bx, %bx" or on arm64 "orr xzr, xzr, xzr": the first one starts counting,
 * the next one stops it, and so on. For machines with one CPU.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

__attribute__((visibility("default"))) int qemu_plugin_version = 4;

struct block {
	uint64_t addr;
	uint64_t insns;
	uint64_t runs;
	struct block *next;
};

static int counting;

#define BLOCKS (1 << 16)

static struct block *blocks[BLOCKS];
static const char *output = "insns.out";

static struct block *find(uint64_t addr, uint64_t insns)
{
	struct block **head = &blocks[(addr * 0x9e3779b97f4a7c15ull) >> 48];
	struct block *block;

	for (block = *head; block; block = block->next)
		if (block->addr == addr && block->insns == insns)
			return block;
	block = calloc(1, sizeof(*block));
	if (!block)
		abort();
	block->addr = addr;
	block->insns = insns;
	block->next = *head;
	*head = block;
	return block;
}

static void executed(unsigned int vcpu, void *data)
{
	(void)vcpu;
	((struct block *)data)->runs += counting;
}

static void marked(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	counting = !counting;
}

static const uint8_t marker_x86[] = { 0x66, 0x87, 0xdb };
static const uint8_t marker_arm64[] = { 0xff, 0x03, 0x1f, 0xaa };
static const uint8_t *marker = marker_x86;
static size_t marker_len = sizeof(marker_x86);

static int has_marker(const struct qemu_plugin_tb *tb)
{
	uint8_t bytes[sizeof(marker_arm64)];
	size_t i;

	for (i = 0; i < qemu_plugin_tb_n_insns(tb); i++)
		if (qemu_plugin_insn_data(qemu_plugin_tb_get_insn(tb, i), bytes,
					  marker_len) == marker_len &&
		    !memcmp(bytes, marker, marker_len))
			return 1;
	return 0;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	(void)id;
	if (has_marker(tb))
		qemu_plugin_register_vcpu_tb_exec_cb(tb, marked,
						     QEMU_PLUGIN_CB_NO_REGS,
						     NULL);
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed,
					     QEMU_PLUGIN_CB_NO_REGS,
					     find(qemu_plugin_tb_vaddr(tb),
						  qemu_plugin_tb_n_insns(tb)));
}

static void finished(qemu_plugin_id_t id, void *data)
{
	FILE *file = fopen(output, "w");
	size_t i;

	(void)id;
	(void)data;
	if (!file)
		return;
	for (i = 0; i < BLOCKS; i++) {
		struct block *block;

		for (block = blocks[i]; block; block = block->next)
			fprintf(file, "%llx %llu %llu\n",
				(unsigned long long)block->addr,
				(unsigned long long)block->insns,
				(unsigned long long)block->runs);
	}
	fclose(file);
}

__attribute__((visibility("default")))
int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info,
			int argc, char **argv)
{
	if (!strcmp(info->target_name, "aarch64")) {
		marker = marker_arm64;
		marker_len = sizeof(marker_arm64);
	}
	if (argc > 0 && !strncmp(argv[0], "out=", 4))
		output = strdup(argv[0] + 4);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, finished, NULL);
	return 0;
}
