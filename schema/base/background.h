// How work runs beside other work.
#pragma once

#include <future>

namespace pp {

// For std::async: in a thread of its own, or, where none can be had, when its result is asked for.
// (What is called is then given on a second time: a lambda that owns what it captures has a name,
// so that it is copied, not moved.)
inline constexpr std::launch kInBackground = std::launch::async | std::launch::deferred;

}  // namespace pp
