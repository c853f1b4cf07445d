// SPDX-License-Identifier: GPL-2.0

//! As `kernel::sync::aref`: only a name.
