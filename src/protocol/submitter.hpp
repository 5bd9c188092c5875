#pragma once

namespace guozhuang::protocol {

/// The submitter of a request on this rank. The negotiator keeps it, and hands it back with the
/// entry that resolves the request.
class Submitter {
protected:
    Submitter() = default;
    ~Submitter() = default;
};

}  // namespace guozhuang::protocol
