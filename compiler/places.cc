#include "compiler/places.h"

#include <fmt/format.h>

namespace pp {
namespace {

int DeviceOf(Pattern pattern, int stage, int devices) {
  return pattern == Pattern::kV && stage >= devices ? 2 * devices - 1 - stage : stage % devices;
}

}  // namespace

Pattern PatternOf(const Program& program) {
  const bool is_v = program.stages == 2 * program.devices && program.devices > 1 &&
                    program.pipes[0].device_of.back() == 0;
  return is_v ? Pattern::kV : Pattern::kLoop;
}

std::string Misplaced(const Program& program, Pattern pattern) {
  if (program.pipes.size() > 1)
    return fmt::format("stage 0 is on {} devices (on one)", program.pipes.size());
  if (pattern == Pattern::kV && program.stages != 2 * program.devices)
    return fmt::format("{} stages (two for each of {} devices)", program.stages, program.devices);
  for (int s = 0; s < program.stages; ++s) {
    const int device = program.pipes[0].device_of[s], right = DeviceOf(pattern, s, program.devices);
    if (device != right)
      return fmt::format("stage {} is on device {} (on device {})", s, device, right);
  }
  return "";
}

Result<std::string> TorchtitanSchedule(const Program& program) {
  const Pattern pattern = PatternOf(program);
  if (const std::string why = Misplaced(program, pattern); !why.empty())
    return Status::Invalid(why);
  if (program.stages % program.devices != 0)
    return Status::Invalid(
        fmt::format("{} stages on {} devices (as many on each)", program.stages, program.devices));
  if (pattern == Pattern::kV) return std::string("ZBVZeroBubble");
  return std::string(program.stages == program.devices ? "1F1B" : "Interleaved1F1B");
}

}  // namespace pp
