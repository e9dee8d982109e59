//! Errors as Python's exceptions, with our message.

use std::fmt;
use std::io;

use pyo3::exceptions::PyException;
use pyo3::{PyErr, create_exception};
use quantloom::runtime::checkpoint::CheckpointError;

create_exception!(
    quantloom,
    QuantloomError,
    PyException,
    "What a checkpoint, a layer, a device or a product says. x of a wrong shape is a ValueError, x of a wrong \
     type a TypeError, and a file that cannot be read an OSError."
);

/// The exception with the message of an error.
pub(crate) fn raised(error: impl fmt::Display) -> PyErr {
    QuantloomError::new_err(error.to_string())
}

/// The exception of a checkpoint: Python's own where the system reported an error.
pub(crate) fn of_checkpoint(error: &CheckpointError) -> PyErr {
    match error {
        CheckpointError::Io { error: system, .. } => {
            io::Error::new(system.kind(), error.to_string()).into()
        }
        _ => raised(error),
    }
}
