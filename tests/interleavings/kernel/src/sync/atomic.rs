// SPDX-License-Identifier: GPL-2.0

//! Stand-in for `kernel::sync::atomic` on top of loom's atomics. A word is created on first use,
//! because most words of a table are never used. It has the same history as if it had been created
//! immediately.

use crate::model::{
    self,
    Made, //
};
use core::sync::atomic::Ordering as Core;
#[cfg(not(feature = "explore"))]
use core::sync::atomic::{
    AtomicU32,
    AtomicU64,
    AtomicUsize, //
};
use core::{
    cell::{
        Cell,
        UnsafeCell, //
    },
    panic::Location, //
};
#[cfg(feature = "explore")]
use loom::sync::atomic::{
    AtomicU32,
    AtomicU64,
    AtomicUsize, //
};

/// Orderings.
pub mod ordering {
    /// An ordering as a value.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Kind {
        Relaxed,
        Acquire,
        Release,
        Full,
    }

    /// An ordering, of a type of its own in the kernel.
    pub trait Ordering {
        /// The value.
        fn kind(self) -> Kind;
    }

    macro_rules! orderings {
        ($($name:ident),*) => {$(
            /// As in the kernel.
            #[derive(Clone, Copy)]
            pub struct $name;

            impl Ordering for $name {
                fn kind(self) -> Kind {
                    Kind::$name
                }
            }
        )*};
    }

    orderings!(Relaxed, Acquire, Release, Full);

    impl Ordering for Kind {
        fn kind(self) -> Kind {
            self
        }
    }

    /// `usual`, or `broken` if row `row` of the table is weakened.
    pub fn pick(row: usize, usual: impl Ordering, broken: impl Ordering) -> Kind {
        if crate::model::is_broken(row) {
            broken.kind()
        } else {
            usual.kind()
        }
    }
}

use ordering::{
    Kind,
    Ordering, //
};

fn fence() {
    #[cfg(feature = "explore")]
    loom::sync::atomic::fence(Core::SeqCst);
    #[cfg(not(feature = "explore"))]
    core::sync::atomic::fence(Core::SeqCst);
}

/// The ordering of the accesses of a full operation, between its two barriers.
fn core_order(kind: Kind) -> Core {
    match kind {
        Kind::Relaxed => Core::Relaxed,
        Kind::Acquire => Core::Acquire,
        Kind::Release => Core::Release,
        Kind::Full => Core::AcqRel,
    }
}

/// A type that an [`Atomic`] can hold.
pub trait AtomicType: Copy {
    /// The word that holds a value of this type.
    type Word;

    /// The bits, for reports.
    fn bits(self) -> u64;
    /// Creates a word at time `made`.
    fn make(self, made: Made) -> Self::Word;
    /// The memory of the word is freed.
    fn freed(word: &Self::Word);
    fn load(word: &Self::Word, order: Core) -> Self;
    fn store(word: &Self::Word, value: Self, order: Core);
    fn swap(word: &Self::Word, value: Self, order: Core) -> Self;
    fn exchange(word: &Self::Word, old: Self, new: Self, order: Core) -> Result<Self, Self>;
    fn add(word: &Self::Word, value: Self, order: Core) -> Self;
    fn sub(word: &Self::Word, value: Self, order: Core) -> Self;
}

macro_rules! types {
    ($([$($generics:tt)*] $type:ty as $word:ident of $raw:ty: |$from:ident| $to:expr, |$value:ident| $back:expr;)*) => {$(
        impl $($generics)* AtomicType for $type {
            type Word = $word;

            fn bits(self) -> u64 {
                let $from = self;
                let raw: $raw = $to;
                raw as u64
            }

            fn make(self, made: Made) -> $word {
                let $from = self;
                #[cfg(feature = "explore")]
                return $word::new_at($to, made);
                #[cfg(not(feature = "explore"))]
                {
                    let _ = made;
                    $word::new($to)
                }
            }

            #[track_caller]
            fn freed(word: &$word) {
                #[cfg(feature = "explore")]
                word.freed();
                #[cfg(not(feature = "explore"))]
                let _ = word;
            }

            #[track_caller]
            fn load(word: &$word, order: Core) -> Self {
                let $value = word.load(order);
                $back
            }

            #[track_caller]
            fn store(word: &$word, $from: Self, order: Core) {
                word.store($to, order)
            }

            #[track_caller]
            fn swap(word: &$word, $from: Self, order: Core) -> Self {
                let $value = word.swap($to, order);
                $back
            }

            #[track_caller]
            fn exchange(word: &$word, old: Self, new: Self, order: Core) -> Result<Self, Self> {
                let old = { let $from = old; $to };
                let new = { let $from = new; $to };
                match word.compare_exchange(old, new, order, Core::Relaxed) {
                    Ok($value) => Ok($back),
                    Err($value) => Err($back),
                }
            }

            #[track_caller]
            fn add(word: &$word, $from: Self, order: Core) -> Self {
                let $value = word.fetch_add($to, order);
                $back
            }

            #[track_caller]
            fn sub(word: &$word, $from: Self, order: Core) -> Self {
                let $value = word.fetch_sub($to, order);
                $back
            }
        }
    )*};
}

types! {
    [] u32 as AtomicU32 of u32: |v| v, |v| v;
    [] i32 as AtomicU32 of u32: |v| v as u32, |v| v as i32;
    [] u64 as AtomicU64 of u64: |v| v, |v| v;
    [] i64 as AtomicU64 of u64: |v| v as u64, |v| v as i64;
    [] usize as AtomicUsize of usize: |v| v, |v| v;
    [] bool as AtomicU32 of u32: |v| u32::from(v), |v| v != 0;
    [<T>] *mut T as AtomicUsize of usize: |v| v.expose_provenance(),
        |v| core::ptr::with_exposed_provenance_mut(v);
}

/// A word shared by threads.
pub struct Atomic<T: AtomicType> {
    initial: T,
    made: Made,
    /// The word, and the execution in which it was created.
    word: UnsafeCell<Option<(usize, T::Word)>>,
    dropped: Cell<bool>,
}

// SAFETY: In a model one thread runs at a time. Without exploration, the word is created
// immediately.
unsafe impl<T: AtomicType> Send for Atomic<T> {}
// SAFETY: As above.
unsafe impl<T: AtomicType> Sync for Atomic<T> {}

impl<T: AtomicType> Atomic<T> {
    pub const fn new(initial: T) -> Self {
        Self {
            initial,
            made: model::made(),
            word: UnsafeCell::new(None),
            dropped: Cell::new(false),
        }
    }

    fn is_used(&self) -> bool {
        assert!(!self.dropped.get(), "a word is used after its memory was freed");
        // SAFETY: One thread runs at a time, and none other is in this function.
        let word = unsafe { &*self.word.get() };
        matches!(word, Some((made_in, _)) if *made_in == model::execution())
    }

    /// The value of an unused word that no other thread can access. Reading it creates no word in
    /// loom, because thousands are read when a table is dropped.
    fn untouched(&self) -> Option<T> {
        (!self.is_used() && model::alone()).then_some(self.initial)
    }

    #[track_caller]
    fn word(&self) -> &T::Word {
        if !self.is_used() {
            let word = (model::execution(), self.initial.make(self.made));
            // SAFETY: One thread runs at a time, and none other is in this function.
            unsafe { *self.word.get() = Some(word) };
        }
        // SAFETY: The mutable borrow above has ended.
        match unsafe { &*self.word.get() } {
            Some((_, word)) => word,
            None => unreachable!(),
        }
    }

    #[track_caller]
    fn log(&self, what: &'static str, kind: Kind, value: T) {
        let address = core::ptr::from_ref(self) as usize;
        model::log(address, what, kind, value.bits(), Location::caller());
    }

    #[track_caller]
    fn rmw<R>(&self, kind: Kind, f: impl FnOnce(&T::Word, Core) -> R) -> R {
        if kind == Kind::Full {
            fence();
        }
        let result = f(self.word(), core_order(kind));
        if kind == Kind::Full {
            fence();
        }
        result
    }

    #[track_caller]
    pub fn load(&self, order: impl Ordering) -> T {
        let kind = order.kind();
        if let Some(value) = self.untouched() {
            return value;
        }
        let value = T::load(self.word(), core_order(kind));
        self.log("load", kind, value);
        value
    }

    #[track_caller]
    pub fn store(&self, value: T, order: impl Ordering) {
        let kind = order.kind();
        T::store(self.word(), value, core_order(kind));
        self.log("store", kind, value);
    }

    #[track_caller]
    pub fn xchg(&self, value: T, order: impl Ordering) -> T {
        let kind = order.kind();
        if let Some(old) = self.untouched() {
            if old.bits() == value.bits() {
                return old;
            }
        }
        let old = self.rmw(kind, |word, order| T::swap(word, value, order));
        self.log("xchg: was", kind, old);
        old
    }

    #[track_caller]
    pub fn cmpxchg(&self, old: T, new: T, order: impl Ordering) -> Result<T, T> {
        let kind = order.kind();
        if kind == Kind::Full {
            fence();
        }
        let result = T::exchange(self.word(), old, new, core_order(kind));
        if kind == Kind::Full && result.is_ok() {
            fence();
        }
        match result {
            Ok(_) => self.log("cmpxchg: now", kind, new),
            Err(found) => self.log("cmpxchg: fails, is", kind, found),
        }
        result
    }

    #[track_caller]
    pub fn fetch_add(&self, value: T, order: impl Ordering) -> T {
        let kind = order.kind();
        let old = self.rmw(kind, |word, order| T::add(word, value, order));
        self.log("fetch_add: was", kind, old);
        old
    }

    #[track_caller]
    pub fn fetch_sub(&self, value: T, order: impl Ordering) -> T {
        let kind = order.kind();
        let old = self.rmw(kind, |word, order| T::sub(word, value, order));
        self.log("fetch_sub: was", kind, old);
        old
    }

    #[track_caller]
    pub fn add(&self, value: T, order: impl Ordering) {
        self.fetch_add(value, order);
    }
}

impl<T: AtomicType> Drop for Atomic<T> {
    fn drop(&mut self) {
        self.dropped.set(true);
        if let Some((made_in, word)) = self.word.get_mut() {
            // All accesses must happen before the memory is freed.
            if *made_in == model::execution() && !std::thread::panicking() {
                T::freed(word);
            }
        }
    }
}

/// A flag shared by threads.
pub struct AtomicFlag(Atomic<bool>);

impl AtomicFlag {
    pub const fn new(initial: bool) -> Self {
        Self(Atomic::new(initial))
    }

    #[track_caller]
    pub fn load(&self, order: impl Ordering) -> bool {
        self.0.load(order)
    }

    #[track_caller]
    pub fn store(&self, value: bool, order: impl Ordering) {
        self.0.store(value, order)
    }

    #[track_caller]
    pub fn xchg(&self, value: bool, order: impl Ordering) -> bool {
        self.0.xchg(value, order)
    }
}
