#pragma once

namespace guozhuang::engine {

/// Algorithms call this wherever they wait, so that control messages keep moving while a bundle's
/// data does. The engine implements it: backends and wire call back into the engine through it.
class Pump {
public:
    virtual ~Pump() = default;
    /// Does what there is to do, without blocking; true if it did something. Executes nothing, so
    /// it does not nest. Throws what ended the job. Only the thread that drives calls it.
    virtual bool pump() = 0;
};

}  // namespace guozhuang::engine
