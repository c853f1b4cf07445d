// SPDX-License-Identifier: GPL-2.0

//! Parameters of the default policy.

/// Parameters of the default policy. A driver may expose them as module parameters.
///
/// # Examples
///
/// ```
/// use rust_hmm::policy::Parameters;
///
/// /// Thrashing memory stays in place for a second.
/// const PARAMETERS: Parameters = Parameters {
///     thrash_lapse: 1000,
///     thrash_pin: 1000,
///     ..Parameters::DEFAULT
/// };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Percentage of resident or touched pages above which a subtree is migrated whole, from 1 to
    /// 100. With a value above 100, that never happens.
    pub threshold: usize,
    /// Maximum amount of memory that is migrated ahead of a stream, in units of 2 MiB, the size of
    /// a tree on all kernels.
    pub ahead: usize,
    /// Number of faults on migrated pages of a block after which the block is pinned in place.
    pub thrash_count: u32,
    /// Maximum time in ms between the migration and such a fault.
    pub thrash_lapse: u64,
    /// Time in ms for which a thrashing block is pinned in place.
    pub thrash_pin: u64,
    /// Time in ms for which a device fault on a thrashing page sleeps before the page is migrated
    /// again, so that other users can access it. 0 disables this.
    pub thrash_delay: u64,
}

impl Parameters {
    /// Default values.
    pub const DEFAULT: Self = Self {
        threshold: 51,
        ahead: 8,
        thrash_count: 3,
        thrash_lapse: 500,
        thrash_pin: 500,
        thrash_delay: 2,
    };
}
