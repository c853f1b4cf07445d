// SPDX-License-Identifier: GPL-2.0
/*
 * Exports the coverage counters of instrumented modules as raw profiles for llvm-profdata: one file
 * per module below debugfs hmm_coverage/. The counters of a module that was unloaded, or whose init
 * function failed, are kept and added to those of its next load.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include "coverage.h"

/* INSTR_PROF_RAW_MAGIC_64 and the version of LLVM 19. */
#define RAW_MAGIC	0xff6c70726f667281ULL
#define RAW_VERSION	10

struct raw_header {
	u64 magic, version;
	u64 binary_ids;
	u64 data;		/* records */
	u64 pad_before_counters;
	u64 counters;		/* of 8 bytes */
	u64 pad_after_counters;
	u64 bitmap, pad_after_bitmap;
	u64 names;		/* bytes */
	u64 counters_delta, bitmap_delta, names_delta;
	u64 vtables, vtable_names;
	u64 value_kind_last;
};

/* Bytes of a record: struct __llvm_profile_data. */
#define RECORD	64

struct watched {
	const char *name;
	/* Of the module that is loaded now, else NULL. */
	const struct hmm_coverage *live;
	/* The last raw profile, whose counters are the sum of all loads. */
	char *raw;
	size_t size;
	size_t counters_at, counters;
};

static struct watched watched[] = {
	{ "rust_hmm" },
	{ "rust_dmirror" },
	{ "rust_mirror_only" },
	{ "qemu_gpu" },
	{ "rust_lpae" },
};

static DEFINE_MUTEX(lock);
static struct dentry *dir;

static size_t length(const struct hmm_coverage *cov, int section)
{
	return cov->end[section] - cov->begin[section];
}

static const struct hmm_coverage *find(struct module *mod)
{
	unsigned int i;

	for (i = 0; i < mod->num_kp; i++)
		if (!strcmp(mod->kp[i].name, "hmm_coverage"))
			return mod->kp[i].arg;
	return NULL;
}

/* Builds the raw profile of @w from the current counters and the saved ones. */
static int collect(struct watched *w)
{
	const struct hmm_coverage *cov = w->live;
	size_t data = length(cov, HMM_COVERAGE_DATA);
	size_t cnts = length(cov, HMM_COVERAGE_COUNTERS);
	size_t names = length(cov, HMM_COVERAGE_NAMES);
	size_t size = sizeof(struct raw_header) + data + cnts + ALIGN(names, 8);
	char *raw = vzalloc(size), *at;
	u64 *sum;
	size_t i;

	if (!raw)
		return -ENOMEM;
	*(struct raw_header *)raw = (struct raw_header) {
		.magic = RAW_MAGIC,
		.version = RAW_VERSION,
		.data = data / RECORD,
		.counters = cnts / sizeof(u64),
		.names = names,
		.counters_delta = cov->begin[HMM_COVERAGE_COUNTERS] -
				  cov->begin[HMM_COVERAGE_DATA],
		.names_delta = (unsigned long)cov->begin[HMM_COVERAGE_NAMES],
		.value_kind_last = 2,
	};
	at = raw + sizeof(struct raw_header);
	memcpy(at, cov->begin[HMM_COVERAGE_DATA], data);
	at += data;
	sum = (u64 *)at;
	memcpy(at, cov->begin[HMM_COVERAGE_COUNTERS], cnts);
	memcpy(at + cnts, cov->begin[HMM_COVERAGE_NAMES], names);
	/* It is the same module, so that the counters correspond. */
	for (i = 0; w->raw && i < min(w->counters, cnts / sizeof(u64)); i++)
		sum[i] += ((u64 *)(w->raw + w->counters_at))[i];
	vfree(w->raw);
	w->raw = raw;
	w->size = size;
	w->counters_at = at - raw;
	w->counters = cnts / sizeof(u64);
	/* Reset, because these are in the profile now. */
	memset(cov->begin[HMM_COVERAGE_COUNTERS], 0, cnts);
	return 0;
}

static int module_event(struct notifier_block *nb, unsigned long state,
			void *data)
{
	struct module *mod = data;
	int i;

	mutex_lock(&lock);
	for (i = 0; i < ARRAY_SIZE(watched); i++) {
		struct watched *w = &watched[i];

		if (strcmp(mod->name, w->name))
			continue;
		if (state == MODULE_STATE_COMING) {
			w->live = find(mod);
			if (!w->live)
				pr_err("%s is not instrumented\n", mod->name);
		} else if (state == MODULE_STATE_GOING && w->live) {
			if (collect(w))
				pr_err("lost the counters of %s\n", mod->name);
			w->live = NULL;
		}
	}
	mutex_unlock(&lock);
	return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = module_event };

static int profile_open(struct inode *inode, struct file *file)
{
	struct watched *w = inode->i_private;
	int ret = 0;

	mutex_lock(&lock);
	if (w->live)
		ret = collect(w);
	mutex_unlock(&lock);
	return ret;
}

static ssize_t profile_read(struct file *file, char __user *to, size_t len,
			    loff_t *at)
{
	struct watched *w = file_inode(file)->i_private;
	ssize_t ret;

	mutex_lock(&lock);
	ret = simple_read_from_buffer(to, len, at, w->raw, w->size);
	mutex_unlock(&lock);
	return ret;
}

static const struct file_operations profile_fops = {
	.owner = THIS_MODULE,
	.open = profile_open,
	.read = profile_read,
	.llseek = default_llseek,
};

static int __init coverage_init(void)
{
	int i, ret;

	ret = register_module_notifier(&notifier);
	if (ret)
		return ret;
	dir = debugfs_create_dir("hmm_coverage", NULL);
	for (i = 0; i < ARRAY_SIZE(watched); i++)
		debugfs_create_file(watched[i].name, 0400, dir, &watched[i],
				    &profile_fops);
	return 0;
}
module_init(coverage_init);

static void __exit coverage_exit(void)
{
	int i;

	debugfs_remove_recursive(dir);
	unregister_module_notifier(&notifier);
	for (i = 0; i < ARRAY_SIZE(watched); i++)
		vfree(watched[i].raw);
}
module_exit(coverage_exit);

MODULE_DESCRIPTION("Coverage of rust_hmm and of drivers that use it");
MODULE_LICENSE("GPL");
