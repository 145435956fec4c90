// Steps that overlap (PipeDream): a program with a prologue and an epilogue, laid out as the one
// list that its devices run.
//
//   prologue | body | body | epilogue      K - 1 bodies for K steps
//     F0 F1  | F2 B0 .. F0' B1' .. |       in a body, micro M + m is the next step's m
//
// Verifier and simulator look at such a program unrolled: with two bodies it shows the prologue
// before a body, a body before a body, and a body before the epilogue.
//
// A program without sections runs one body after the other; unrolled it shows what a body waits for
// in the one before (body_walk.h), and how soon the next one can follow (--grad-norm off).
#pragma once

#include "schema/program.h"

namespace pp {

bool HasSections(const Program& program);

// The same program with everything in the bodies, step k's micro-batch m being number k * M + m.
// Where steps overlap, there are (bodies + 1) * M of them, else bodies * M. REQUIRES: prologue and
// epilogue have micro-batches below M (Load and Parse see to that).
Program Unroll(const Program& program, int bodies);
// Of one device alone; the other lists are empty.
Program UnrollDevice(const Program& program, int device, int bodies);

// Enough to see every section after every other one that it can follow, and a body from its
// beginning to its end in the steady state: what a body begins is over in the next one.
inline constexpr int kUnrolledBodies = 2;
// The program with one list per device: itself, or unrolled if steps overlap.
Program Unrolled(Program program);

// Makes prologue and epilogue from a body in which micro-batches from M on belong to the next step:
// the prologue is the part that belongs to the next step, the epilogue the part that does not. For
// a body without such micro-batches it does nothing.
void DeriveSections(Program& program);

// The same for the list of one device of a program whose steps overlap.
void DeriveSections(int microbatches, DeviceList& list);

// The evaluations as a separate program, in the same memory: plain bodies.
Program EvaluationOf(const Program& program);
bool HasEvaluation(const Program& program);
// The first micro-batch of such a program alone.
Program FirstMicroBatch(Program evaluation);

}  // namespace pp
