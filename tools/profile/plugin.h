/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The parts of QEMU's plugin interface, version 4 (QEMU 9.1 and later), that are used here. Debian
 * does not package QEMU's header.
 */
#ifndef PROFILE_PLUGIN_H
#define PROFILE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

/* The beginning of QEMU's structure, which has further members. */
struct qemu_info {
	const char *target_name;
};

enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };

typedef void (*tb_trans_cb)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
typedef void (*tb_exec_cb)(unsigned int vcpu, void *data);
typedef void (*exit_cb)(qemu_plugin_id_t id, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, tb_trans_cb cb);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb,
					  tb_exec_cb cb,
					  enum qemu_plugin_cb_flags flags,
					  void *data);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, exit_cb cb, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb,
						 size_t idx);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *dest,
			     size_t len);

#endif /* PROFILE_PLUGIN_H */
