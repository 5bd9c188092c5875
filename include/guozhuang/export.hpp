#pragma once

/// Marks what a user may link against; everything else is hidden.
#define GUOZHUANG_API __attribute__((visibility("default")))
