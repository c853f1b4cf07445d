// SPDX-License-Identifier: GPL-2.0
/*
 * One shrinker for many owners, aware of memory cgroups and nodes.
 *
 * Only list_lru sets the bit by which reclaim of a cgroup finds a shrinker,
 * and only an allocation from a slab cache with that list_lru makes the
 * cgroup's list in it. So each piece of memory that can be given back has a
 * small object from such a cache, which is charged to the same cgroup.
 */
#include <linux/export.h>
#include <linux/list_lru.h>
#include <linux/minmax.h>
#include <linux/nodemask.h>
#include <linux/shrinker.h>
#include <linux/slab.h>

#include "shrinker.h"

struct rust_hmm_reclaimable {
	struct list_head list;
	/* Holds a reference. */
	void *owner;
};

static const struct rust_hmm_owner_ops *owner_ops;
static struct shrinker *owners_shrinker;
static struct kmem_cache *object_cache;
static struct list_lru object_lists;
/* Pages that an object stands for, at most. */
static unsigned long object_pages;

/* The lock of @list is held, so @item is not freed. */
static enum lru_status get_owner(struct list_head *item,
				 struct list_lru_one *list, void *owner)
{
	struct rust_hmm_reclaimable *object;

	object = container_of(item, struct rust_hmm_reclaimable, list);
	owner_ops->get(object->owner);
	*(void **)owner = object->owner;
	/* Other owners are asked first from now on. */
	return LRU_ROTATE;
}

static unsigned long count_objects(struct shrinker *shrinker,
				   struct shrink_control *sc)
{
	unsigned long count = list_lru_shrink_count(&object_lists, sc);

	return count ? count * object_pages : SHRINK_EMPTY;
}

static unsigned long scan_objects(struct shrinker *shrinker,
				  struct shrink_control *sc)
{
	unsigned long given, scanned = 0, one = 1;
	void *owner = NULL;

	list_lru_walk_one(&object_lists, sc->nid, sc->memcg, get_owner, &owner,
			  &one);
	if (!owner)
		return SHRINK_STOP;
	given = owner_ops->reclaim(owner, sc->nr_to_scan, &scanned);
	/* An owner that gives nothing does not end the scan. */
	sc->nr_scanned = max3(given, scanned, object_pages);
	return given;
}

/* Objects stand for at most @pages each; an owner is asked for @batch. */
int rust_hmm_owners_init(const struct rust_hmm_owner_ops *ops,
			 unsigned long pages, unsigned long batch)
{
	owner_ops = ops;
	object_pages = pages;
	object_cache = kmem_cache_create("rust_hmm_reclaimable",
				  sizeof(struct rust_hmm_reclaimable), 0,
				  SLAB_ACCOUNT | SLAB_RECLAIM_ACCOUNT, NULL);
	if (!object_cache)
		return -ENOMEM;
	owners_shrinker = shrinker_alloc(SHRINKER_NUMA_AWARE | SHRINKER_MEMCG_AWARE,
					 "rust_hmm_tables");
	if (!owners_shrinker)
		goto no_shrinker;
	if (list_lru_init_memcg(&object_lists, owners_shrinker))
		goto no_lists;
	owners_shrinker->count_objects = count_objects;
	owners_shrinker->scan_objects = scan_objects;
	owners_shrinker->batch = batch;
	shrinker_register(owners_shrinker);
	return 0;

no_lists:
	shrinker_free(owners_shrinker);
no_shrinker:
	kmem_cache_destroy(object_cache);
	return -ENOMEM;
}

/* No object is left. */
void rust_hmm_owners_exit(void)
{
	shrinker_free(owners_shrinker);
	list_lru_destroy(&object_lists);
	kmem_cache_destroy(object_cache);
}

/* Not on the list. Context: may sleep. NULL: no memory. */
struct rust_hmm_reclaimable *rust_hmm_reclaimable_alloc(void *owner)
{
	struct rust_hmm_reclaimable *object;

	object = kmem_cache_alloc_lru(object_cache, &object_lists,
				      GFP_KERNEL_ACCOUNT);
	if (!object)
		return NULL;
	INIT_LIST_HEAD(&object->list);
	object->owner = owner;
	return object;
}

/* The owner is not used any more when this returns. */
void rust_hmm_reclaimable_free(struct rust_hmm_reclaimable *object)
{
	list_lru_del_obj(&object_lists, &object->list);
	kmem_cache_free(object_cache, object);
}

/* Context: atomic, but no interrupt. */
void rust_hmm_reclaimable_add(struct rust_hmm_reclaimable *object)
{
	list_lru_add_obj(&object_lists, &object->list);
}

/* Context: as rust_hmm_reclaimable_add(). */
void rust_hmm_reclaimable_del(struct rust_hmm_reclaimable *object)
{
	list_lru_del_obj(&object_lists, &object->list);
}

#if IS_BUILTIN(CONFIG_KUNIT)
/*
 * For tests: asks the owner of each node's first object, of any cgroup, for
 * @pages.
 */
unsigned long rust_hmm_owners_reclaim(unsigned long pages)
{
	unsigned long given = 0, scanned;
	int nid;

	for_each_online_node(nid) {
		unsigned long one = 1;
		void *owner = NULL;

		list_lru_walk_node(&object_lists, nid, get_owner, &owner, &one);
		if (owner)
			given += owner_ops->reclaim(owner, pages, &scanned);
	}
	return given;
}
#endif
