//! What only this broker can show.
