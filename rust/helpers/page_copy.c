// SPDX-License-Identifier: GPL-2.0
/*
 * Access to the contents of pages that devices, CPUs and copies may access
 * concurrently. Ordering such accesses is up to the program that uses the
 * device, so the data races are not reported.
 *
 * Copies move whole words, because memcpy() and copy_to_user() may use
 * "rep movsb", which is slow on some processors and in all emulators.
 */
#include <linux/atomic.h>
#include <linux/compiler.h>
#include <linux/export.h>
#include <linux/highmem.h>
#include <linux/kasan-checks.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#ifdef CONFIG_X86_64
#include <asm/asm.h>
#endif

/* An access whose data races are intended, see above. */
#define CONTENTS(statement) data_race(({ statement; 0; }))

static __always_inline void copy_words(void *dst, const void *src, size_t len)
{
	kasan_check_read(src, len);
	kasan_check_write(dst, len);
#ifdef CONFIG_X86_64
	{
		size_t words = len / 8;

		asm volatile("rep movsq"
			     : "+D" (dst), "+S" (src), "+c" (words)
			     : : "memory");
		len %= 8;
	}
#endif
	if (len)
		CONTENTS(memcpy(dst, src, len));
}

static __always_inline void clear_words(void *dst, size_t len)
{
	kasan_check_write(dst, len);
	CONTENTS(memset64(dst, 0, len / 8));
	if (len % 8)
		CONTENTS(memset(dst + (len & ~7UL), 0, len % 8));
}

#ifdef CONFIG_X86_64
/* Copies to or from user memory. Returns the number of words not copied. */
static __always_inline size_t user_words(void *dst, const void *src,
					 size_t words)
{
	asm volatile("1: rep movsq\n"
		     "2:\n"
		     _ASM_EXTABLE_UA(1b, 2b)
		     : "+D" (dst), "+S" (src), "+c" (words)
		     : : "memory");
	return words;
}
#endif

/*
 * Returns the number of bytes not copied, which are the last ones of the area.
 */
static size_t to_user(unsigned long user, const void *src, size_t len)
{
	void __user *dst = (void __user *)user;
	size_t left = 0;

	if (!access_ok(dst, len))
		return len;
	kasan_check_read(src, len);
	pagefault_disable();
#ifdef CONFIG_X86_64
	__uaccess_begin();
	left = user_words((__force void *)dst, src, len / 8) * 8;
	__uaccess_end();
	if (left) {
		left += len % 8;
	} else {
		dst += len & ~7UL;
		src += len & ~7UL;
		len %= 8;
	}
#endif
	if (!left && len)
		left = __copy_to_user_inatomic(dst, src, len);
	pagefault_enable();
	return left;
}

static size_t from_user(void *dst, unsigned long user, size_t len)
{
	const void __user *src = (const void __user *)user;
	size_t left = 0;

	if (!access_ok(src, len))
		return len;
	kasan_check_write(dst, len);
	pagefault_disable();
#ifdef CONFIG_X86_64
	__uaccess_begin_nospec();
	left = user_words(dst, (__force const void *)src, len / 8) * 8;
	__uaccess_end();
	if (left) {
		left += len % 8;
	} else {
		dst += len & ~7UL;
		src += len & ~7UL;
		len %= 8;
	}
#endif
	if (!left && len)
		left = __copy_from_user_inatomic(dst, src, len);
	pagefault_enable();
	return left;
}

static __always_inline void read_page(void *dst, unsigned long pfn,
				      size_t offset, size_t len)
{
	void *at = kmap_local_page(pfn_to_page(pfn));

	copy_words(dst, at + offset, len);
	kunmap_local(at);
}

static __always_inline void write_page(unsigned long pfn, size_t offset,
				       const void *src, size_t len)
{
	void *at = kmap_local_page(pfn_to_page(pfn));

	copy_words(at + offset, src, len);
	kunmap_local(at);
}

void rust_hmm_read_page(void *dst, unsigned long pfn, size_t offset,
			size_t len)
{
	read_page(dst, pfn, offset, len);
}
EXPORT_SYMBOL_GPL(rust_hmm_read_page);

void rust_hmm_write_page(unsigned long pfn, size_t offset, const void *src,
			 size_t len)
{
	write_page(pfn, offset, src, len);
}
EXPORT_SYMBOL_GPL(rust_hmm_write_page);

/* Copies @npages consecutive page frames to @dst. */
void rust_hmm_read_pages(void *dst, unsigned long pfn, unsigned long npages)
{
	for (; npages--; pfn++, dst += PAGE_SIZE)
		read_page(dst, pfn, 0, PAGE_SIZE);
}
EXPORT_SYMBOL_GPL(rust_hmm_read_pages);

/* Fills @npages consecutive page frames from @src. */
void rust_hmm_write_pages(unsigned long pfn, const void *src,
			  unsigned long npages)
{
	for (; npages--; pfn++, src += PAGE_SIZE)
		write_page(pfn, 0, src, PAGE_SIZE);
}
EXPORT_SYMBOL_GPL(rust_hmm_write_pages);

void rust_hmm_copy_pages(unsigned long dst, unsigned long src,
			 unsigned long npages)
{
	while (npages--)
		copy_highpage(pfn_to_page(dst++), pfn_to_page(src++));
}
EXPORT_SYMBOL_GPL(rust_hmm_copy_pages);

void rust_hmm_clear_pages(unsigned long pfn, unsigned long npages)
{
	for (; npages--; pfn++) {
		void *at = kmap_local_page(pfn_to_page(pfn));

		clear_words(at, PAGE_SIZE);
		kunmap_local(at);
	}
}
EXPORT_SYMBOL_GPL(rust_hmm_clear_pages);

void rust_hmm_copy_bytes(void *dst, const void *src, size_t len)
{
	copy_words(dst, src, len);
}
EXPORT_SYMBOL_GPL(rust_hmm_copy_bytes);

void rust_hmm_clear_bytes(void *dst, size_t len)
{
	clear_words(dst, len);
}
EXPORT_SYMBOL_GPL(rust_hmm_clear_bytes);

/* Copies to or from present user memory: page faults are disabled. */
size_t rust_hmm_page_to_user(unsigned long user, unsigned long pfn,
			     size_t offset, size_t len)
{
	void *at = kmap_local_page(pfn_to_page(pfn));
	size_t left = to_user(user, at + offset, len);

	kunmap_local(at);
	return left;
}
EXPORT_SYMBOL_GPL(rust_hmm_page_to_user);

size_t rust_hmm_page_from_user(unsigned long pfn, size_t offset,
			       unsigned long user, size_t len)
{
	void *at = kmap_local_page(pfn_to_page(pfn));
	size_t left = from_user(at + offset, user, len);

	kunmap_local(at);
	return left;
}
EXPORT_SYMBOL_GPL(rust_hmm_page_from_user);

size_t rust_hmm_bytes_to_user(unsigned long user, const void *src, size_t len)
{
	return to_user(user, src, len);
}
EXPORT_SYMBOL_GPL(rust_hmm_bytes_to_user);

size_t rust_hmm_bytes_from_user(void *dst, unsigned long user, size_t len)
{
	return from_user(dst, user, len);
}
EXPORT_SYMBOL_GPL(rust_hmm_bytes_from_user);

/* Faults user memory in. Returns the number of bytes not faulted in. */
size_t rust_hmm_fault_in_user(unsigned long user, size_t len, bool write)
{
	if (write)
		return fault_in_safe_writeable((const char __user *)user, len);
	return fault_in_readable((const char __user *)user, len);
}
EXPORT_SYMBOL_GPL(rust_hmm_fault_in_user);

/*
 * Atomic with respect to the CPU, too; @offset is a multiple of 8 within the
 * page.
 */
u64 rust_hmm_fetch_add_page(unsigned long pfn, size_t offset, u64 value)
{
	void *at = kmap_local_page(pfn_to_page(pfn));
	u64 old = atomic64_fetch_add(value, (atomic64_t *)(at + offset));

	kunmap_local(at);
	return old;
}
EXPORT_SYMBOL_GPL(rust_hmm_fetch_add_page);

u64 rust_hmm_fetch_add_bytes(void *at, u64 value)
{
	return atomic64_fetch_add(value, (atomic64_t *)at);
}
EXPORT_SYMBOL_GPL(rust_hmm_fetch_add_bytes);
