#pragma once

namespace guozhuang::engine {

/// What an algorithm calls wherever it waits, so that control messages go on while the data of a
/// bundle moves. The engine is one: this is the way back from backends and wire to it.
class Pump {
public:
    virtual ~Pump() = default;
    /// Does what there is to do, without blocking; true if it did something. Executes nothing, so
    /// it does not nest. Throws what ended the job. Only the thread that drives calls it.
    virtual bool pump() = 0;
};

}  // namespace guozhuang::engine
