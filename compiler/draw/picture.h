// A schedule as boxes on lanes, before it is drawn in any format: which instruction is where, how
// long, in which colour.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/simulate.h"
#include "schema/format/timeline.h"
#include "schema/program.h"
#include "schema/semantics/placement.h"

namespace pp {

// Two instructions that run as one share their lane's height.
enum class Height : uint8_t { kWhole, kUpper, kLower };

struct Box {
  int32_t index;      // in the device's body
  double start, end;  // equal where it takes no time
  Height height = Height::kWhole;
};

// One lane of one device, in the order of its list.
struct Track {
  LaneName lane;
  std::vector<Box> boxes;
  bool TakesTime() const;
};

// Each device's lanes, the compute lane first (always there).
std::vector<std::vector<Track>> Tracks(const Program& program, const Execution& execution);

// When each instruction of each device runs. A WAIT begins when the device reaches it, as a run
// records it, so that idle time is labelled with what it waits for.
std::vector<std::vector<Span>> SpansWithWaits(const Program& program, const Execution& execution);

// How a kind of instruction looks: Paul Tol's "light" scheme, made for labelled cells that
// colour-blind readers can tell apart (personal.sron.nl/~pault).
struct Style {
  Op op;
  const char* legend;
  uint32_t colour;   // 0xRRGGBB
  uint8_t terminal;  // the nearest of a terminal's 256 colours, also for its darkened shades
  uint8_t terminal_dark;
};
const Style& StyleOf(Op op);

// What distinguishes the copies of an instruction on one device: its pipe if there are several,
// else which of the device's stages it works on. Shade 0 of 1 is the plain colour.
struct Shade {
  int number = 0, count = 1;
};
class Shades {
 public:
  // REQUIRES: `program` outlives it.
  explicit Shades(const Program& program) : program_(program), placement_(program) {}
  Shade Of(int device, const Instruction& instruction) const;

 private:
  const Program& program_;
  const Placement placement_;
};
// "#77aadd", darker with the shade's number.
std::string ColourOf(Op op, const Shade& shade);

// The text above a picture.
std::string Title(const Program& program);  // "4 devices, 8 micro-batches"
std::string Summary(const Program& program, const Prediction& prediction);  // "makespan 33 T ..."

}  // namespace pp
