#pragma once

namespace guozhuang::engine {

/// Algorithms call this wherever they wait, so that control messages keep moving while a bundle's
/// data does. The engine implements it: backends and wire call back into the engine through it.
class Pump {
public:
    virtual ~Pump() = default;
    /// Makes progress without blocking; true if there was anything to do. Executes no bundle, so it
    /// does not nest. Throws what ended the job. Only the thread that drives calls it.
    virtual bool pump() = 0;
};

}  // namespace guozhuang::engine
