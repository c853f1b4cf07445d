// SPDX-License-Identifier: GPL-2.0
/*
 * One shrinker for many owners of memory, aware of memory cgroups and NUMA
 * nodes.
 *
 * Reclaim of a cgroup calls a shrinker only if a bit is set, which only
 * list_lru sets. The list of a cgroup is created only by an allocation with
 * kmem_cache_alloc_lru(). Therefore each unit of reclaimable memory has a small
 * object from such a cache, which is charged to the same cgroup.
 */
#include <linux/export.h>
#include <linux/list_lru.h>
#include <linux/minmax.h>
#include <linux/nodemask.h>
#include <linux/shrinker.h>
#include <linux/slab.h>

/* Operations of an owner that the shrinker calls. */
struct rust_hmm_owner_ops {
	/* Takes a reference to the owner. Context: atomic. */
	void (*get)(void *owner);
	/*
	 * Frees up to @pages pages, and drops the reference. Returns the number
	 * of freed pages. Sets @scanned to an upper bound of the number of
	 * pages that were scanned for that. Context: reclaim.
	 */
	unsigned long (*reclaim)(void *owner, unsigned long pages,
				 unsigned long *scanned);
};

struct rust_hmm_reclaimable {
	struct list_head list;
	/* Holds a reference. */
	void *owner;
};

static const struct rust_hmm_owner_ops *owner_ops;
static struct shrinker *owners_shrinker;
static struct kmem_cache *object_cache;
static struct list_lru object_lists;
/* Most pages that an object represents. */
static unsigned long object_pages;

/*
 * Gets a reference to the owner of @item. The lock of @list is held, so that
 * @item is not freed.
 */
static enum lru_status get_owner(struct list_head *item,
				 struct list_lru_one *list, void *owner)
{
	struct rust_hmm_reclaimable *object;

	object = container_of(item, struct rust_hmm_reclaimable, list);
	owner_ops->get(object->owner);
	*(void **)owner = object->owner;
	/* Rotated, so that the next scan begins with another owner. */
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
	/*
	 * Count at least one object, so that an owner that frees nothing does
	 * not end the scan.
	 */
	sc->nr_scanned = max3(given, scanned, object_pages);
	return given;
}

/*
 * An object represents at most @pages pages. @batch: pages that one scan
 * reclaims of an owner.
 */
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

/* Must be called when no object is left. */
void rust_hmm_owners_exit(void)
{
	shrinker_free(owners_shrinker);
	list_lru_destroy(&object_lists);
	kmem_cache_destroy(object_cache);
}

/*
 * Allocates an object that is not on a list. Returns NULL if out of memory.
 * Context: may sleep.
 */
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

/* Frees an object. The shrinker does not use the owner after this returns. */
void rust_hmm_reclaimable_free(struct rust_hmm_reclaimable *object)
{
	list_lru_del_obj(&object_lists, &object->list);
	kmem_cache_free(object_cache, object);
}

/*
 * Adds an object to the list of its cgroup and node. Context: may be atomic,
 * but not an interrupt.
 */
void rust_hmm_reclaimable_add(struct rust_hmm_reclaimable *object)
{
	list_lru_add_obj(&object_lists, &object->list);
}

/* Removes an object from its list. Context: as rust_hmm_reclaimable_add(). */
void rust_hmm_reclaimable_del(struct rust_hmm_reclaimable *object)
{
	list_lru_del_obj(&object_lists, &object->list);
}

#ifdef CONFIG_RUST_HMM_KUNIT_TEST
/*
 * For tests: reclaims @pages of the owner of the first object of each node, of
 * any cgroup. Returns the number of reclaimed pages.
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

struct shrinker *rust_hmm_shrinker_alloc(const char *name)
{
	return shrinker_alloc(0, "%s", name);
}
EXPORT_SYMBOL_GPL(rust_hmm_shrinker_alloc);
