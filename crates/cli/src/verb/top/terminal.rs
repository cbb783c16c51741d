//! The terminal in the mode that a screen needs, and back, whatever happens.

use std::io::{self, Stdout};
use std::sync::Once;

use crossterm::cursor::Show;
use crossterm::event::{DisableMouseCapture, EnableMouseCapture};
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use rustix::process::Signal;

/// A terminal that shows a screen. Leaves it when dropped, and before a panic is printed.
pub struct Terminal {
    pub screen: ratatui::Terminal<CrosstermBackend<Stdout>>,
}

impl Terminal {
    /// # Errors
    /// When standard output is not a terminal, or it is gone.
    pub fn enter() -> io::Result<Self> {
        leave_before_panics();
        enter()?;
        let screen = ratatui::Terminal::new(CrosstermBackend::new(io::stdout()));
        match screen {
            Ok(screen) => Ok(Self { screen }),
            Err(error) => {
                leave();
                Err(error)
            }
        }
    }

    /// Stops this process, as the shell's Ctrl-Z does, and draws all again when it goes on.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn suspend(&mut self) -> io::Result<()> {
        leave();
        // SIGSTOP: a handler of SIGTSTP is what asked for this.
        rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
        enter()?;
        self.repaint()
    }

    /// Draws all again with the next drawing. `clear` of ratatui asks where the cursor is, which not each terminal answers.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn repaint(&mut self) -> io::Result<()> {
        let size = self.screen.size()?;
        self.screen.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    let entered = execute!(io::stdout(), EnterAlternateScreen, EnableMouseCapture);
    if entered.is_err() {
        leave();
    }
    entered
}

/// A terminal that is gone needs none of it.
fn leave() {
    // In this order: a terminal that shows the shell again takes lines again.
    let _ = disable_raw_mode();
    let _ = execute!(
        io::stdout(),
        DisableMouseCapture,
        LeaveAlternateScreen,
        Show
    );
}

/// A program that aborts on panic drops nothing.
fn leave_before_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            before(panic);
        }));
    });
}
