// Whether a program is right. It is if
//   values     each is written once, on the device where it is read, before it is read,
//              once; sums are closed before they are used; every stage steps, all equally often
//   channels   between two devices the receives are in the order of the sends, and all members
//              of a group start its collectives in the same order
//   progress   nobody waits forever, on a transport that buffers nothing, with the
//              planned buffers and no others
//   memory     every value lies inside the arena and on no other value's bytes; a device has
//              exactly the regions that it needs (regions.h)
//   routines   each is right as a program of its own (routines.h). An evaluation: every stage
//              evaluates every micro-batch once, and nothing is changed
//
// Where steps overlap, all that holds of two bodies after a prologue and before an epilogue, which
// are parts of the body (sections.h): so what one body passes to the next has the same name and
// place in all of them.
//
// A plain body is proved once, not twice in a row. It leaves nothing behind: at its end every value
// is gone and every collective waited for. So all devices can run all of one body before any of the
// next. The next one may begin earlier on some of them, but that changes nothing: whether an
// instruction may start depends on what is over, never on who was first (as in a Kahn network), and
// the bytes that it writes are free for it (body_walk.h). For the same reason any routine may
// follow any other where a rank begins it when it is done with the one before: then its memory is
// free, and what it waits for comes from ranks that wait for nothing of its own in between.
//
// The first thing that is wrong is reported.
#pragma once

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/walk.h"

namespace pp {

// Verifies as far as the program has been lowered. kPlan is what piperun asks for.
// On success `waits_for`, if given, holds what each device's body waits for; where steps overlap
// (sections.h), what it waits for in the program unrolled with two bodies.
Status Verify(const Program& program, Depth depth, std::vector<WaitsFor>* waits_for = nullptr);

// The same without progress, of a program without sections and routines: whoever plays it to its
// end, as a simulation does, has seen that nobody waits forever.
Status VerifyLists(const Program& program, Depth depth, std::vector<WaitsFor>* waits_for);

// Its routines alone: Verify's part that is about them.
Status VerifyRoutines(const Program& program, Depth depth = Depth::kPlan);

// One device alone: values and memory. A rank checks its own list with this.
Status VerifyDevice(const Program& program, int device, Depth depth, WaitsFor* waits_for);

}  // namespace pp
