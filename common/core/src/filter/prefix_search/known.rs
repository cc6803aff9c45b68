//! The depths that pools came to, for others to be asked for first.

/// Depths kept at most; those beyond are not counted.
const KEPT: usize = 8;

/// Depths found, and how often.
#[derive(Debug, Default)]
pub(super) struct Known {
    depths: [(u32, u32); KEPT],
    len: usize,
}

impl Known {
    pub(super) fn add(&mut self, depth: u32) {
        let kept = &mut self.depths[..self.len];
        match kept.iter_mut().find(|(known, _)| *known == depth) {
            Some((_, times)) => *times += 1,
            None if self.len < KEPT => {
                self.depths[self.len] = (depth, 1);
                self.len += 1;
            }
            None => {}
        }
    }

    /// Whether any depth was found more than once.
    pub(super) fn is_common(&self) -> bool {
        self.common().next().is_some()
    }

    /// The depth found most often within these bounds, if more than once.
    pub(super) fn within(&self, low: u32, high: u32) -> Option<u32> {
        let within = self
            .common()
            .filter(|(depth, _)| (low..=high).contains(depth));
        let most = within.max_by_key(|(_, times)| *times);
        most.map(|(depth, _)| depth)
    }

    fn common(&self) -> impl Iterator<Item = (u32, u32)> {
        let kept = self.depths[..self.len].iter().copied();
        kept.filter(|(_, times)| *times > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_depth_is_common_from_its_second_time_on() {
        let mut known = Known::default();
        known.add(8);
        known.add(9);
        assert!(!known.is_common());

        known.add(9);

        assert!(known.is_common());
        assert_eq!(known.within(0, 100), Some(9));
        assert_eq!(known.within(0, 8), None);
        assert_eq!(known.within(10, 100), None);
    }

    #[test]
    fn the_most_common_depth_within_bounds_is_told() {
        let mut known = Known::default();
        for depth in [5, 5, 7, 7, 7] {
            known.add(depth);
        }

        assert_eq!(known.within(0, 100), Some(7));
        assert_eq!(known.within(0, 6), Some(5));
    }

    #[test]
    fn depths_beyond_those_that_are_kept_are_not_counted() {
        let mut known = Known::default();
        for depth in (0..20).chain(0..20) {
            known.add(depth);
        }

        assert_eq!(known.within(0, 7), Some(7));
        assert_eq!(known.within(8, 20), None);
    }
}
