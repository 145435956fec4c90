// A program: one instruction list per device, and what they are about. This is what
// pipec writes and piperun executes. It is plain data; text.h prints and parses it,
// file.h stores it, verify.h says whether it is right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/model/layout.h"

namespace pp {

enum class Kind : uint8_t {
  kNone = 0,
#define PP_KIND(number, name, text, kind_class, meaning) k##name = number,
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, meaning)
#include "schema/ops.def"
};
// Above the number of each.
inline constexpr int kKindNumbers = 1 + std::max({0
#define PP_KIND(number, name, text, kind_class, meaning) , number
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, meaning)
#include "schema/ops.def"
                                        });
enum class KindClass : uint8_t { kValue, kAccumulator, kState, kEvent };

enum class Op : uint8_t {
#define PP_KIND(number, name, text, kind_class, meaning)
#define PP_OP(number, name, text, lane, fields, reads, writes, keeps, meaning) k##name = number,
#include "schema/ops.def"
};

// A device runs its lanes concurrently, each in list order. Send and Recv stand for one lane per
// direction and peer.
enum class Lane : uint8_t { kCompute, kSend, kRecv, kReduce };

enum class Field : uint8_t {
  kStage,
  kMicro,
  kPeer,
  kBucket,
  kPipe,
  kVersion,
  kValue,
  kSent,
  kOverlap
};

struct KindInfo {
  Kind kind;
  std::string_view text;
  KindClass kind_class;
  std::string_view meaning;
};

// A value of stage `instruction.stage + offset`.
struct Operand {
  Kind kind;
  int offset;
};

struct OpInfo {
  Op op;
  std::string_view text;
  Lane lane;
  std::span<const Field> fields;
  std::span<const Operand> reads;
  std::span<const Operand> writes;
  Kind keeps;
  std::string_view meaning;
  bool Has(Field field) const;
};

std::span<const KindInfo> Kinds();
std::span<const OpInfo> Ops();
const KindInfo& Info(Kind kind);
const OpInfo& Info(Op op);
// Of a message: kAct or kGrad.
inline Kind KindOfMessage(Op op) {
  return op == Op::kSendAct || op == Op::kRecvAct ? Kind::kAct : Kind::kGrad;
}
// By text ("act", "FW") or by the number in a file; null if there is none.
const KindInfo* FindKind(std::string_view text);
const OpInfo* FindOp(std::string_view text);
const KindInfo* FindKind(int number);
const OpInfo* FindOp(int number);

// One instruction. Fields that its op does not have keep their defaults.
struct Instruction {
  Op op = Op::kLoad;
  Kind value = Kind::kNone;  // WAIT: what for
  bool sent = false;         // WAIT: for the end of its send
  bool overlap = false;  // with its neighbour, which has it set too: the two run as one (DualPipe)
  int16_t bucket = -1;
  int16_t pipe = -1;  // only set if there are several
  // Uses weights this many updates older than the newest, or the first ones if there have not been
  // so many updates; only set if a device keeps several versions. STEP: 0, it makes the newest.
  int16_t version = -1;
  int32_t stage = -1;
  int32_t micro = -1;
  int32_t peer = -1;  // the other device
  // Where the values it writes lie in the device's arena, in bytes, in the order of the table's
  // "writes" (without those that have no bytes); a value in two pieces (memory.h) has both; -1
  // before plan-memory.
  int64_t offset[3] = {-1, -1, -1};

  bool operator==(const Instruction&) const = default;
};

// SEND or RECV.
bool IsMessage(const Instruction& instruction);
// What an instruction does to the number of full activations alive: +1 from its start (FW,
// RE), -1 from its end (BW, or BW_weight where the backward is split).
int ActivationChange(Op op);
// Whether each instruction is the first of two that overlap: pairs are taken from the left.
std::vector<bool> FirstHalves(std::span<const Instruction> list);
// What a WAIT can wait for: what a message or a collective delivers.
bool CanWaitFor(Kind kind);
// Whether `instruction` has the field: the table's fields, and for a WAIT those of the
// message or collective that it waits for.
bool HasField(const Instruction& instruction, Field field);

// A value's name on one device.
struct Value {
  Kind kind = Kind::kNone;
  int32_t stage = -1;
  int32_t micro = -1;
  bool operator==(const Value&) const = default;
};

// The value that an operand of `instruction` refers to in a model of `stages` stages, with the
// names changed at the ends; kind kNone if it does not exist.
Value Resolve(Operand operand, const Instruction& instruction, int stages);

enum class P2p : uint8_t { kAsync, kBlocking };

// More stages or micro-batches than this are a mistake (a plan file reaches its limit earlier), and
// tables that grow with them should not exhaust a machine's memory to find out.
inline constexpr int32_t kMostCount = 1 << 24;

// One copy of the model placed on the devices: stage -> device.
struct Pipe {
  std::vector<int32_t> device_of;
  bool operator==(const Pipe&) const = default;
};

// Memory that a device holds from the first step to the last.
struct Region {
  Kind kind;
  int32_t stage;  // -1 where it belongs to the whole device
  int32_t pipe;   // of the stage's copy; -1 where there is one, or no stage
  int64_t offset;
  int64_t bytes;
  bool operator==(const Region&) const = default;
};

// A program without prologue and epilogue runs K steps as K bodies. With them, steps overlap:
// prologue, K - 1 bodies, epilogue. Micro-batches from M on are those of the next step.
struct DeviceList {
  std::vector<Instruction> prologue;
  std::vector<Instruction> body;
  std::vector<Instruction> epilogue;
  // Only the forwards of one batch, for its loss: a program of its own (EvaluationOf), which runs
  // between two steps or after the last one, in the memory of a step.
  std::vector<Instruction> evaluation;
  std::vector<Region> regions;
  int64_t arena_bytes = 0;  // the peak: regions and values, 0 before plan-memory
  bool operator==(const DeviceList&) const = default;
};

// How often a step updates this copy of a stage's weights.
inline int64_t UpdatesOf(const DeviceList& list, int stage, int pipe) {
  return std::count_if(list.body.begin(), list.body.end(), [=](const Instruction& i) {
    return i.op == Op::kStep && i.stage == stage && (i.pipe < 0 || i.pipe == pipe);
  });
}

struct Program {
  std::string scheme;
  std::string passes;  // as given to --passes
  P2p p2p = P2p::kAsync;
  int32_t devices = 0;
  int32_t stages = 0;
  int32_t microbatches = 0;
  std::vector<Pipe> pipes;
  std::vector<int32_t> pipe_of;  // micro-batch -> pipe
  int32_t replicas = 1;          // data-parallel copies of all that; all have the same lists
  int32_t zero = 0;        // 1: the optimizer's state is sharded over a stage's copies (ZeRO-1)
  bool clip = true;        // false: no gradient norm, so that no STEP waits for all devices
  std::optional<Job> job;  // the model, where one was given
  bool evaluates = false;  // the lists are evaluations, which modify nothing; never in a file
  std::vector<DeviceList> lists;
  bool operator==(const Program&) const = default;

  // The same without lists.
  Program Head() const;
  // Whether STEPs make versions of the weights (PipeDream). There is no norm then.
  bool MakesVersions() const;
  // The stages that a device holds, ascending.
  std::vector<int32_t> StagesOf(int device) const;
  // The pipes that place `stage` on `device`, ascending.
  std::vector<int32_t> PipesOf(int stage, int device) const;
  // Ranks that hold a copy of a stage's weights: pipes times replicas.
  int64_t Copies() const { return static_cast<int64_t>(pipes.size()) * replicas; }
  // 1/V for each stage, V being the number of stages that the first pipe places on its device.
  std::vector<double> Shares() const;
  // The same V if it is equal for all devices, else the mean, rounded down.
  int StagesPerDevice() const;
};

}  // namespace pp
