//! Memory in huge pages for what is large: the filters' tables above all.
//!
//! A look into a filter goes anywhere in its table. With pages of 4 KiB it misses the
//! processor's list of pages as well as its caches, and takes half as long again. The core
//! can't ask for other pages, and needs not: it is done where all memory comes from. A large
//! allocation is a mapping of its own that begins at a huge page, and what whole huge pages
//! fit in it are asked for, so that it takes no more memory than otherwise.
//!
//! Where the kernel gives none (`/sys/kernel/mm/transparent_hugepage/enabled` says `never`),
//! all stays as it would be.

#![allow(
    unsafe_code,
    reason = "an allocator hands out raw memory, and nothing else here does"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Smallest allocation that gets a mapping: smaller ones come and go too often.
const LARGE: usize = 4 << 20;
/// A huge page, on the processors that matter.
const HUGE: usize = 2 << 20;
/// Mappings are cut at multiples of this, which is no less than any page.
const GRAIN: usize = 64 << 10;

/// The allocator of a program that keeps filters; the system's own for all that is small.
#[derive(Clone, Copy, Debug)]
pub struct HugePages;

// SAFETY: small allocations are the system allocator's from beginning to end, since a layout's
// size alone says which of the two it is. A large one is a mapping that nobody else knows.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            map(layout.size())
        } else {
            // SAFETY: the caller's promises are passed on.
            unsafe { System.alloc(layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            map(layout.size())
        } else {
            // SAFETY: the caller's promises are passed on.
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: `memory` is from `map` with this size, and no longer in use.
            unsafe { unmap(memory, layout.size()) }
        } else {
            // SAFETY: the caller's promises are passed on.
            unsafe { System.dealloc(memory, layout) }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller has made sure that the size is one of a layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if !is_large(layout) && !is_large(new) {
            // SAFETY: the caller's promises are passed on.
            return unsafe { System.realloc(memory, layout, size) };
        }
        // SAFETY: the new memory is no part of the old, and both are at least as long as what
        // is copied.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(memory, moved, layout.size().min(size));
                self.dealloc(memory, layout);
            }
            moved
        }
    }
}

const fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= HUGE
}

/// Memory of zeros that begins at a huge page; null if there is none.
fn map(size: usize) -> *mut u8 {
    let length = size.next_multiple_of(GRAIN);
    let Some(wider) = length.checked_add(HUGE) else {
        return ptr::null_mut();
    };
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at a place of the kernel's choice is nobody else's.
    let Ok(start) = (unsafe { mmap_anonymous(ptr::null_mut(), wider, access, flags) }) else {
        return ptr::null_mut();
    };
    let start = start.cast::<u8>();
    let before = start.align_offset(HUGE);
    let memory = start.wrapping_add(before);
    let behind = HUGE - before;
    // SAFETY: what is cut off is of the mapping just made, on both sides of what is kept; the
    // advice is for the part that is kept. None of it is in use yet.
    unsafe {
        if before > 0 {
            let _ = munmap(start.cast(), before);
        }
        if behind > 0 {
            let _ = munmap(memory.wrapping_add(length).cast(), behind);
        }
        // Refused where there are no huge pages, which is as well.
        let _ = madvise(memory.cast(), size / HUGE * HUGE, Advice::LinuxHugepage);
    }
    memory
}

/// # Safety
///
/// `memory` is from [`map`] with the same size, and is not used any more.
unsafe fn unmap(memory: *mut u8, size: usize) {
    // SAFETY: as the caller promises.
    let _ = unsafe { munmap(memory.cast(), size.next_multiple_of(GRAIN)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a size, each its place modulo 251, that a reallocation has to keep.
    fn written(size: usize) -> (*mut u8, Layout) {
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the layout isn't empty, and only its own bytes are written.
        unsafe {
            let memory = HugePages.alloc(layout);
            assert!(!memory.is_null());
            for at in 0..size {
                memory.add(at).write(u8::try_from(at % 251).unwrap());
            }
            (memory, layout)
        }
    }

    #[test]
    fn large_memory_begins_at_a_huge_page_and_is_zero() {
        for size in [LARGE, LARGE + 1, 3 * LARGE + 12_345] {
            let layout = Layout::from_size_align(size, 64).unwrap();
            // SAFETY: the memory is read and written within its layout, then freed.
            unsafe {
                let memory = HugePages.alloc_zeroed(layout);
                assert_eq!(memory as usize % HUGE, 0);
                assert!((0..size).all(|at| memory.add(at).read() == 0));
                memory.add(size - 1).write(1);
                HugePages.dealloc(memory, layout);
            }
        }
    }

    #[test]
    fn memory_keeps_its_content_whichever_way_it_is_resized() {
        let sizes = [1_000, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE];
        for (from, to) in sizes.iter().flat_map(|from| sizes.map(|to| (*from, to))) {
            let (memory, layout) = written(from);
            // SAFETY: the memory is `written`'s, and what is read of it is within both sizes.
            unsafe {
                let moved = HugePages.realloc(memory, layout, to);
                let kept = from.min(to);
                assert!((0..kept).all(|at| usize::from(moved.add(at).read()) == at % 251));
                let layout = Layout::from_size_align(to, 8).unwrap();
                HugePages.dealloc(moved, layout);
            }
        }
    }

    #[test]
    fn huge_pages_are_asked_for() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
            // A kernel that has none forgets what was asked.
            return;
        }
        let (memory, layout) = written(2 * LARGE);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        // SAFETY: the memory is `written`'s.
        unsafe { HugePages.dealloc(memory, layout) };

        // Mappings alike that touch are one to the kernel.
        let holds = |line: &str| {
            let range = line.split(' ').next()?;
            let (from, to) = range.split_once('-')?;
            let from = usize::from_str_radix(from, 16).ok()?;
            let to = usize::from_str_radix(to, 16).ok()?;
            (from..to).contains(&(memory as usize)).then_some(())
        };
        let lines = smaps.lines().skip_while(|line| holds(line).is_none());
        let flags = lines
            .skip(1)
            .find(|line| line.starts_with("VmFlags:"))
            .expect("the kernel tells the flags of every mapping");
        assert!(flags.split(' ').any(|flag| flag == "hg"), "{flags}");
    }

    #[test]
    fn memory_that_must_begin_at_more_than_a_huge_page_is_the_systems() {
        let layout = Layout::from_size_align(LARGE, 2 * HUGE).unwrap();

        assert!(!is_large(layout));
    }
}
