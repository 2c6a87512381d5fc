//! How much memory one call of this library may take. Templates and tokenizers are users' files, and
//! both can make much of little: a string that is doubled in a loop, a normalizer that replaces each
//! letter by a megabyte. Neither minijinja nor tokenizers can be told a limit, so the allocator counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Called where memory ends; it ends the process, as an allocator may neither fail (Rust aborts then)
/// nor unwind. `refused`: the system gave none; else the call has taken `bytes`, more than it may.
/// `what` is what the call was doing.
pub type Handler =
    unsafe extern "C" fn(refused: i32, what: *const u8, what_size: usize, bytes: usize);

static HANDLER: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static USED: Cell<isize> = const { Cell::new(0) };
    static LIMIT: Cell<isize> = const { Cell::new(isize::MAX) };
    static WHAT: Cell<&'static str> = const { Cell::new("") };
    static TEXT_LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
}

pub fn set_handler(handler: Option<Handler>) {
    HANDLER.store(handler.map_or(0, |function| function as usize), Ordering::Release);
}

/// The limit of one call, for as long as it lives.
pub struct Budget(());

impl Budget {
    pub fn new(what: &'static str, bytes: usize) -> Self {
        USED.set(0);
        WHAT.set(what);
        LIMIT.set(isize::try_from(bytes).unwrap_or(isize::MAX));
        Self(())
    }

    /// Of a call that writes a text of at most `bytes`.
    pub fn with_text_limit(self, bytes: usize) -> Self {
        TEXT_LIMIT.set(bytes);
        self
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        LIMIT.set(isize::MAX);
        TEXT_LIMIT.set(usize::MAX);
    }
}

/// Bytes that a text which this call writes may have.
pub fn text_limit() -> usize {
    TEXT_LIMIT.get()
}

#[cold]
fn give_up(refused: bool, bytes: usize) -> ! {
    LIMIT.set(isize::MAX); // what the handler allocates is not the call's
    let what = WHAT.get();
    let address = HANDLER.load(Ordering::Acquire);
    if address != 0 {
        // SAFETY: set_handler stored a function of this type.
        unsafe {
            let handler = std::mem::transmute::<usize, Handler>(address);
            handler(i32::from(refused), what.as_ptr(), what.len(), bytes);
        }
    }
    std::process::abort()
}

struct Counting;

impl Counting {
    fn charge(bytes: isize) {
        let limit = LIMIT.get();
        if limit == isize::MAX {
            return;
        }
        let used = USED.get().saturating_add(bytes);
        USED.set(used);
        if used > limit {
            give_up(false, used as usize);
        }
    }

    fn checked(pointer: *mut u8, bytes: usize) -> *mut u8 {
        // Without a handler Rust's own end says as much.
        if pointer.is_null() && HANDLER.load(Ordering::Acquire) != 0 {
            give_up(true, bytes);
        }
        pointer
    }
}

// SAFETY: the system's allocator with counts beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::charge(layout.size() as isize);
        Self::checked(System.alloc(layout), layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::charge(layout.size() as isize);
        Self::checked(System.alloc_zeroed(layout), layout.size())
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::charge(-(layout.size() as isize));
        System.dealloc(pointer, layout);
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::charge(size as isize - layout.size() as isize);
        Self::checked(System.realloc(pointer, layout, size), size)
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
