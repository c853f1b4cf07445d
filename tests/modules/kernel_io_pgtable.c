// SPDX-License-Identifier: GPL-2.0
/*
 * Test helper: walks a table of the sample with the kernel's own page table code for 64-bit Arm,
 * which is compiled unmodified.
 *
 * /dev/hmm_lpae_walk takes one ioctl on four words: the address of the root table, an address to
 * translate, log2 of the granule (12 or 14), and the returned physical address, 0 if there is none.
 * The caller is trusted to pass the root of an open file of the sample. The walk is an RCU
 * read-side critical section, and the sample waits for a grace period before it frees flushed
 * tables.
 */
#include <io-pgtable-arm.c>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/uaccess.h>

#define WALK _IOC(_IOC_READ | _IOC_WRITE, 'H', 0, 4 * sizeof(u64))

static u64 walk(u64 root, u64 addr, unsigned int granule)
{
	/* Four levels of 9 bits, as for ias = 48, or three of 11 bits, as for ias = 47. */
	struct arm_lpae_io_pgtable data = {
		.iop.fmt = ARM_64_LPAE_S1,
		.pgd_bits = granule - 3,
		.start_level = granule == 12 ? 0 : 1,
		.bits_per_level = granule - 3,
		.pgd = __va(root),
	};
	u64 phys;

	rcu_read_lock();
	phys = arm_lpae_iova_to_phys(&data.iop.ops, addr);
	rcu_read_unlock();
	return phys;
}

static long walk_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	u64 words[4];

	if (_IOC_NR(cmd) != _IOC_NR(WALK) || _IOC_SIZE(cmd) != sizeof(words))
		return -ENOTTY;
	if (copy_from_user(words, (void __user *)arg, sizeof(words)))
		return -EFAULT;
	if (!words[0] || !pfn_valid(words[0] >> PAGE_SHIFT))
		return -EINVAL;
	if (words[2] != 12 && words[2] != 14)
		return -EINVAL;
	words[3] = walk(words[0], words[1], words[2]);
	if (copy_to_user((void __user *)arg, words, sizeof(words)))
		return -EFAULT;
	return 0;
}

static const struct file_operations walk_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = walk_ioctl,
};

static struct miscdevice walk_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "hmm_lpae_walk",
	.fops = &walk_fops,
	.mode = 0600,
};
module_misc_device(walk_device);

MODULE_DESCRIPTION("The kernel's io-pgtable with ARM LPAE walks tables, for tests");
MODULE_LICENSE("GPL");
