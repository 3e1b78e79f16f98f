//! The memory that pixels live in.
//!
//! One [`Arena`] is mapped, faulted in and (by `transfer`) registered with NIXL once, at start, and stays where it is
//! until the process ends: remote memory access makes unmapping it while anything is under way fatal. Decoders write the
//! final pixels into a [`SlotMut`] of it; [`SlotMut::freeze`] makes that a [`Slot`], which is shared, read-only, and
//! gives its range back when the last holder (cache, request, transfer) lets go. So "pinned while somebody needs it" is
//! ownership, not bookkeeping.
//!
//! [`Budget`] is admission before work: whoever wants to hold bytes of some kind waits in line for them first. The pixels
//! of a request are counted in the budget of their zone by a [`Lease`], which travels with its slots: what no lease
//! covers can be evicted, and with what is free that is always enough for those who were admitted.
//!
//! A request takes from the budgets in one order, of each at once all that it needs, and so never waits for what one like it
//! holds while that waits for it: its body (whose own steps have a lane, see `server::body`), files, pixels, and while those
//! are written scratch memory; files of other media; the body that a worker gets.

mod arena;
mod budget;
pub mod limits;
mod mapping;
mod slot;
mod text;
mod till;
mod watch;
mod zone;

pub use arena::{Arena, ArenaError, Layout, SLOT_ALIGNMENT_BYTES, ZoneId};
pub use budget::{Admission, Budget, BudgetError};
pub use slot::{Lease, Slot, SlotMut, WeakSlot};
pub use text::SharedText;
pub use watch::Watch;
pub use zone::ArenaUse;
