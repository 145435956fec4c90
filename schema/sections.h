// Steps that overlap (PipeDream), laid out as the one list that its devices run.
//
//   prologue | body | body | epilogue      K - 1 bodies for K steps
//     F0 F1  | F2 B0 .. F0' B1' .. |       in a body, micro M + m is the next step's m
//
// Prologue and epilogue follow from the body: they are what it has of the next step, and what it
// has of its own.
//
// Verifier and simulator look at such a program unrolled: with two bodies it shows the prologue
// before a body, a body before a body, and a body before the epilogue.
//
// Other programs run one body after the other; unrolled they show what a body waits for
// in the one before (body_walk.h), and how soon the next one can follow (--grad-norm off).
#pragma once

#include "schema/program.h"

namespace pp {

// Of a device's body; empty unless steps overlap.
struct Sections {
  std::vector<Instruction> prologue, epilogue;
  bool operator==(const Sections&) const = default;
};
Sections SectionsOf(const Program& program, int device);
// How many instructions the prologue has.
int PrologueSize(const Program& program, int device);

// The same program with everything in the bodies, step k's micro-batch m being number k * M + m.
// Where steps overlap, there are (bodies + 1) * M of them, else bodies * M.
Program Unroll(const Program& program, int bodies);
// Of one device alone; the other lists are empty.
Program UnrollDevice(const Program& program, int device, int bodies);

// Enough to see every section after every other one that it can follow, and a body from its
// beginning to its end in the steady state: what a body begins is over in the next one.
inline constexpr int kUnrolledBodies = 2;
// The program with one list per device: itself, or unrolled if steps overlap.
Program Unrolled(Program program);

}  // namespace pp
