// SPDX-License-Identifier: GPL-2.0
//! Placeholder.

use crate::harness::Test;

pub const TESTS: &[Test] = &[];
