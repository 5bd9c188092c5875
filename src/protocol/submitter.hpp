#pragma once

namespace guozhuang::protocol {

/// Who has submitted a request on this rank: the negotiator keeps it, and hands it back with the
/// entry that resolves the request.
class Submitter {
protected:
    Submitter() = default;
    ~Submitter() = default;
};

}  // namespace guozhuang::protocol
