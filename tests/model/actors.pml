/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Part of hmm.pml: the engine of a device, and operations of a process and of the kernel on its
 * pages. The parameter a is the index of the process.
 */

/* The engine of device d, which accesses page v. */
proctype engine(byte a, v, d) {
	LOCALS;
	byte f = 0, ops = 0;
	bit write = 0, hit = 0;

	do
	:: ops < OPS && vm[v] ->
		ops++;
		if
		:: write = 0
		:: write = 1
		fi;
		/* Translate by the TLB or the table. */
		d_step {
#ifdef TLB
			if
			:: tlb[T(v, d)] != 0 && (!write || tlb_w[T(v, d)]) -> f = tlb[T(v, d)]; hit = 1
			:: else ->
				if
				:: entry[T(v, d)] != 0 && (!write || entry_w[T(v, d)]) ->
					f = entry[T(v, d)]; hit = 1;
					tlb[T(v, d)] = f; tlb_w[T(v, d)] = entry_w[T(v, d)]
				:: else
				fi
			fi;
#else
			if
			:: entry[T(v, d)] != 0 && (!write || entry_w[T(v, d)]) -> f = entry[T(v, d)]; hit = 1
			:: else
			fi;
#endif
			if
			:: hit -> assert(!dead[MEM(d)]); busy[T(v, d)]++; printf("%d: device %d begins to access frame %d for page %d\n", a, d, f, v)
			:: else
			fi
		};
		if
		:: hit ->
			d_step {
				if
				:: write -> assert(!frozen[v]); written(v, f); printf("%d: device %d writes frame %d\n", a, d, f)
				:: else -> printf("%d: device %d reads frame %d\n", a, d, f); assert(fresh[f] & BIT(v))
				fi;
				busy[T(v, d)]--; f = 0; hit = 0
			}
		:: else ->
			assert(!quiet || write || !warm[T(v, d)]);
			assert(!still || !write || !warm_w[T(v, d)]);
			device_fault(v, d, write, a)
		fi
	:: else -> break
	od;
	left--
}

/* mremap(): page v becomes page u. */
proctype mremap(byte a, v, u) {
	LOCALS;
	mmap_write(MM(v));
	event(v, UNMAP, 0, a);
	d_step {
		vm[u] = vm[v]; vm_w[u] = vm_w[v]; vm[v] = 0; vm_w[v] = 0;
		pte[u] = pte[v]; pte_f[u] = pte_f[v]; pte_w[u] = pte_w[v];
		pte[v] = NONE; pte_f[v] = 0; pte_w[v] = 0;
		x_i = 1;
		do
		:: x_i < NF ->
			if
			:: fresh[x_i] & BIT(v) -> fresh[x_i] = (fresh[x_i] & WITHOUT(v)) | BIT(u)
			:: else
			fi;
			x_i++
		:: else -> break
		od;
		x_i = 0;
		if
		:: zero & BIT(v) -> zero = (zero & WITHOUT(v)) | BIT(u)
		:: else
		fi;
		printf("%d: page %d is page %d now\n", a, v, u)
	};
	event_end(v);
	mmap_write_unlock(MM(v));
	left--
}

/* madvise(MADV_DONTNEED) */
proctype dontneed(byte a, v) {
	LOCALS;
	mmap_read(MM(v));
	event(v, CLEAR, 0, a);
	d_step { zap(v); written(v, 0) };
	event_end(v);
	mmap_read_unlock(MM(v));
	left--
}

/* madvise(MADV_FREE), and reclaim, which drops pages that were not written since. */
proctype madv_free(byte a, v) {
	LOCALS;
	mmap_read(MM(v));
	event(v, CLEAR, 0, a);
	d_step {
		if
		:: pte[v] == PRESENT && mapped[pte_f[v]] == 1 && !locked[pte_f[v]] -> lazy[pte_f[v]] = 1; dirty[pte_f[v]] = 0; given = given | BIT(v)
		:: else
		fi
	};
	event_end(v);
	mmap_read_unlock(MM(v));
	left--
}

proctype reclaim(byte a, v) {
	LOCALS;
	event(v, CLEAR, 0, a);
	d_step {
		if
		:: pte[v] == PRESENT && lazy[pte_f[v]] && !dirty[pte_f[v]] && !locked[pte_f[v]] && mapped[pte_f[v]] == 1 ->
			zap(v);
			/* A page that was not written since may be zero. */
			zero = zero | (given & BIT(v))
		:: else
		fi
	};
	event_end(v);
	left--
}

proctype unmapper(byte a, v) {
	LOCALS;
	mmap_write(MM(v));
	event(v, UNMAP, 0, a);
	d_step { zap(v); vm[v] = 0; vm_w[v] = 0; written(v, 0); zero = zero & WITHOUT(v) };
	event_end(v);
	mmap_write_unlock(MM(v));
	left--
}

/*
 * The process exits. exit_mmap() waits for the last reference of mm_users, and no reference is
 * taken afterwards.
 */
inline exit_mmap(m, a) {
	users[m]--;
	(users[m] == 0 || off == MMGET);
	do
	:: f < NP -> event(V(m, f), UNMAP, 0, a); event_end(V(m, f)); f++
	:: else -> break
	od;
	f = 0;
	mmap_read(m);
	do
	:: f < NP ->
		event(V(m, f), UNMAP, 0, a);
		d_step { zap(V(m, f)); written(V(m, f), 0); zero = zero & WITHOUT(V(m, f)) };
		event_end(V(m, f));
		f++
	:: else -> break
	od;
	mmap_read_unlock(m);
	mmap_write(m);
	d_step {
		f = 0;
		do
		:: f < NP -> assert(pte[V(m, f)] == NONE); vm[V(m, f)] = 0; vm_w[V(m, f)] = 0; f++
		:: else -> break
		od;
		printf("%d: address space %d was torn down\n", a, m)
	};
	mmap_write_unlock(m)
}

proctype exit(byte a, m) {
	LOCALS;
	byte f = 0;
	exit_mmap(m, a);
	left--
}

proctype protect(byte a, v) {
	LOCALS;
	mmap_write(MM(v));
	vm_w[v] = 0;
	event(v, PROTECT, 0, a);
	d_step { pte_w[v] = 0; frozen[v] = 1 };
	event_end(v);
	d_step { frozen[v] = 0; vm_w[v] = 1 };
	mmap_write_unlock(MM(v));
	left--
}

/* userfaultfd removes write access with the mmap lock held for reading, and restores it. */
proctype write_protect(byte a, v) {
	LOCALS;
	mmap_read(MM(v));
	event(v, PROTECT, 0, a);
	d_step { pte_w[v] = 0; vm_w[v] = 0; frozen[v] = 1 };
	event_end(v);
	mmap_read_unlock(MM(v));
	d_step { frozen[v] = 0; vm_w[v] = 1 };
	left--
}

/* Shares page v with page u of a new process. */
inline dup_mmap(v, u, a) {
	mmap_write(MM(v));
	event(v, PROTECT, 0, a);
	d_step {
		pte_w[v] = 0;
		vm[u] = vm[v]; vm_w[u] = vm[v]; users[MM(u)] = 1;
		if
		:: pte[v] == PRESENT || pte[v] == DEVICE -> pte[u] = pte[v]; pte_f[u] = pte_f[v]; mapped[pte_f[v]]++
		/* Isolated by the reverse mapping: copy the migration entry. */
		:: pte[v] == MIGRATING -> pte[u] = MIGRATING; pte_f[u] = pte_f[v]
		:: else
		fi;
		/* Page u has the same contents as v. */
		x_i = 1;
		do
		:: x_i < NF ->
			if
			:: fresh[x_i] & BIT(v) -> fresh[x_i] = fresh[x_i] | BIT(u)
			:: else
			fi;
			x_i++
		:: else -> break
		od;
		x_i = 0;
		if
		:: zero & BIT(v) -> zero = zero | BIT(u)
		:: else
		fi
	};
	event_end(v);
	mmap_write_unlock(MM(v))
}

proctype fork(byte a, v, u) {
	LOCALS;
	dup_mmap(v, u, a);
	left--
}

/* The parent exits after the fork. */
proctype fork_and_exit(byte a, v, u) {
	LOCALS;
	byte f = 0;
	dup_mmap(v, u, a);
	exit_mmap(MM(v), a);
	left--
}

/* KSM replaces page v by a merged page. */
proctype merge(byte a, v) {
	LOCALS;
	mmap_read(MM(v));
	event(v, CLEAR, 0, a);
	d_step {
		if
		:: pte[v] == PRESENT && mapped[pte_f[v]] == 1 && !locked[pte_f[v]] -> merged[pte_f[v]] = 1; pte_w[v] = 0
		:: else
		fi
	};
	event_end(v);
	mmap_read_unlock(MM(v));
	left--
}
