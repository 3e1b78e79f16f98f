//! The routes that workers serve for clients, and what the gateway must know of each.

use super::send::Way;

/// A route of vLLM's that clients may use.
#[derive(Debug)]
pub struct Surface {
    /// Here and on the worker.
    pub path: &'static str,
    /// What metrics call it.
    pub name: &'static str,
    /// The shape of its errors.
    pub dialect: Dialect,
    /// The best way in which pictures may travel here.
    pub best_way: Way,
    pub again: Again,
}

/// Whose errors a client understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
}

/// Whether a request whose connection broke before the first byte of an answer may be sent to another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It has no effect that could happen twice.
    Safe,
}

pub static CHAT_COMPLETIONS: Surface = Surface {
    path: "/v1/chat/completions",
    name: "chat_completions",
    dialect: Dialect::OpenAi,
    // vLLM answers 400 to a uuid that it does not know, before the first byte.
    best_way: Way::Known,
    again: Again::Safe,
};
