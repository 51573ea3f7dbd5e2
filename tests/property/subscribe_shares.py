"""Who of several KeyShared consumers goes first: the part of the specification about shares."""

from __future__ import annotations

from frazil.subscribe import SubscriptionType


class Shares:
    """What consumers have, and owe: also what they failed at and that was not delivered since."""

    def restart_shares(self):
        """A life begins."""
        self.failed_by = {}
        # What was taken back unseen is as if it had not been delivered, where it goes by keys.
        self.unseen = set()
        # Whether somebody got something although it had its share.
        self.is_over = False

    @property
    def share(self):
        return -(-self.limits.max_unacked_messages // max(1, len(self.members)))

    def has(self, member):
        return {offset for offset, (whose, _) in self.hands.items() if whose is member}

    def is_sated(self, member):
        """Whether a consumer may have its share; it may owe less than is counted here."""
        failed = {offset for offset, whose in self.failed_by.items() if whose is member}
        return len(self.members) > 1 and len(failed | self.has(member)) >= self.share

    def give(self, member, *, is_new):
        """A consumer is about to get a record."""
        if len(self.members) > 1 and is_new:
            self.is_over = self.is_over or len(self.has(member)) >= self.share

    def take(self, offset, member):
        """A record is delivered: nobody owes it but who has it."""
        self.failed_by.pop(offset, None)
        self.unseen.discard(offset)

    def fair(self, offset_next):
        """Nobody gets more than its share while somebody who has less could have had a record."""
        is_over, self.is_over = self.is_over, False
        if is_over and self.kind is SubscriptionType.KEY_SHARED and self._owners_are_known():
            for offset, key in self.next_of_keys(offset_next):
                owner = self.owners.get(key)
                if owner in self.members and not self.is_sated(owner) and has_room(owner):
                    assert not self._waits(offset), f"{offset} waits while others have more"

    def may_have_more(self, member):
        """Whether nothing but its filter decides if a KeyShared consumer gets another record."""
        return has_room(member) and self._owners_are_known()

    def _owners_are_known(self):
        return len({key for _, key in self.records.values()}) <= self.limits.keys_max

    def next_of_keys(self, offset_next):
        """The first unsettled record of each key, with its key."""
        found = {}
        for offset in sorted(set(self.records) - self.settled):
            found.setdefault(self.records[offset][1], offset)
        return [(offset, key) for key, offset in found.items() if offset < offset_next]


def has_room(member):
    """Whether a stream takes another record."""
    return member.messages > 0 and member.size_bytes > 0
