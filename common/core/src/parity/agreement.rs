//! Whether two counts agree, over the last few times that they were compared.
//!
//! ```text
//!             `agreeing` in a row            `differing` of the last `window`
//!   Unknown ----------------------> Agrees ---------------------------------+
//!      |                               ^                                    v
//!      |                               +------- `back` in a row ------- Differs
//!      +------------ `differing` of the last `window` -----------------------^
//! ```

/// When counts are called equal or different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgreementConfig {
    /// Comparisons that are looked back at, 32 at most.
    pub window: u32,
    /// So many of them make a difference.
    pub differing: u32,
    /// So many equal ones in a row make an agreement where nothing was known.
    pub agreeing: u32,
    /// So many equal ones in a row end a difference.
    pub back: u32,
}

/// What comparisons have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accord {
    /// Too few comparisons.
    #[default]
    Unknown,
    /// The counts are the same, but for single cases.
    Agrees,
    /// They are not.
    Differs,
}

impl Accord {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Unknown, Self::Agrees, Self::Differs];

    /// A short name, for metrics and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Agrees => "agrees",
            Self::Differs => "differs",
        }
    }
}

/// Two counts that are compared again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    accord: Accord,
    /// A bit for each of the last comparisons, the latest the lowest; set if it differed.
    differed: u32,
    /// Equal ones in a row.
    equal: u32,
    compared: u64,
    different: u64,
}

impl Agreement {
    /// What the comparisons have come to.
    pub const fn accord(&self) -> Accord {
        self.accord
    }

    /// Comparisons so far.
    pub const fn compared(&self) -> u64 {
        self.compared
    }

    /// Those that differed.
    pub const fn different(&self) -> u64 {
        self.different
    }

    /// Takes a comparison; gives what follows, if that changes anything but the unknown into
    /// agreement.
    pub(super) fn note(&mut self, equal: bool, config: &AgreementConfig) -> Option<Accord> {
        self.compared += 1;
        self.different += u64::from(!equal);
        self.equal = if equal {
            self.equal.saturating_add(1)
        } else {
            0
        };
        let window = u32::MAX >> (32 - config.window.clamp(1, 32));
        self.differed = (self.differed << 1 | u32::from(!equal)) & window;
        let before = self.accord;
        self.accord = match before {
            Accord::Differs if self.equal >= config.back => {
                self.differed = 0;
                Accord::Agrees
            }
            Accord::Differs => Accord::Differs,
            _ if self.differed.count_ones() >= config.differing.max(1) => Accord::Differs,
            Accord::Unknown if self.equal < config.agreeing => Accord::Unknown,
            Accord::Unknown | Accord::Agrees => Accord::Agrees,
        };
        let changed = self.accord != before && before != Accord::Unknown;
        (changed || self.accord == Accord::Differs && before != Accord::Differs)
            .then_some(self.accord)
    }
}
