// Tile sizes, register and shared-memory budgets of every kernel family, derived in one place.
//
// A block has kConsumers warpgroups of 64 query rows each and one producer warpgroup, of which one thread
// issues copies. setmaxnreg's pool is what the block was launched with: consumers * kConsumerRegisters +
// kProducerRegisters <= (consumers + 1) * launch registers, where launch registers = 65,536 / threads rounded
// down to 8; asking for more hangs.
#pragma once

#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/arguments.hpp"
#include "cuda/sm90/instance.hpp"

namespace octavo::cuda::sm90 {

using ptx::Mma;

/// Weights: `exact` takes 2^x on the special-function unit against the running maximum; `direct` builds the
/// e4m3 byte from the logarithm, against a reference that moves rarely (docs/numerics.md, slack).
enum class Weights { exact, direct };

/// kScores: operands and accumulator of Q K^T. kValues: of P V.
template <Mma kScores_, Mma kValues_, Weights kWeights_, int kDim_, Variant kVariant>
struct Config {
  static constexpr Mma kScores = kScores_;
  static constexpr Mma kValues = kValues_;
  static constexpr int kDim = kDim_;
  static constexpr bool kGeneral = kVariant == Variant::general;
  static constexpr bool kDirect = kWeights_ == Weights::direct;

  static constexpr bool kHalfScores =
      kScores == Mma::e4m3_f16 || kScores == Mma::f16_f16;  ///< two f16 a register
  static constexpr bool kIntScores = kScores == Mma::int8;
  static constexpr bool kMagicScores = kIntScores && kDirect;  ///< see scores.cuh
  /// Tiles that a row does not see whole become logits before their maxima: integers from 0 have no
  /// -infinity, and extras are added to logits.
  static constexpr bool kSettles = (kIntScores && !kMagicScores) || (kGeneral && !kHalfScores);
  static constexpr bool kWideOperands =
      kScores == Mma::f16_f16 || kScores == Mma::f16_f32 || kScores == Mma::bf16_f32;
  static constexpr bool kBlockScales =
      kScores == Mma::int8 || kScores == Mma::e4m3_f32;         ///< K scales per 64 keys
  static constexpr bool kHeadScale = kScores == Mma::e4m3_f16;  ///< one K scale a head, which joins Q's
  static constexpr bool kWideValues = kValues == Mma::f16_f32 || kValues == Mma::bf16_f32;
  static constexpr bool kHalfOutput = kValues == Mma::e4m3_f16;

  // Tiles. 3 consumers hide latencies best but have 160 registers; where scores and output do not fit, and in
  // narrow instances, 2 with 240; in wide ones 4 with 112. `turbo16` d64, but for its general instance, has
  // none but 2: as fast at all lengths, faster at most (docs/kernels/sm90.md).
  static constexpr bool kFour = kVariant == Variant::wide;
  static constexpr bool kThree = kDim == 64 && !(kWideValues && kGeneral) && kVariant != Variant::narrow &&
                                 !kFour && !(kWideOperands && kHalfScores && !kGeneral);
  static constexpr int kConsumers = kFour ? 4 : kThree ? 3 : 2;
  // Two sets of scores, one a piece, hide the scores' latency but cost instructions: they pay where two
  // warpgroups do not hide it (docs/kernels/sm90.md). With 112 registers two pieces take turns with one set.
  static constexpr bool kTwoSets =
      kGeneral || kHalfOutput || (kHeadScale && kDim == 128) || (kWideOperands && kHalfScores && kDim == 64);
  static constexpr int kPieces = kTwoSets || kFour ? 2 : 1;
  /// of a tile
  static constexpr int kKeys = !kHalfScores                   ? 128
                               : kDim == 64 || !kWideOperands ? 192
                               : kPieces == 2                 ? 128
                                                              : 160;
  static constexpr int kPiece = kKeys / kPieces;  ///< keys of a step
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kConsumerRegisters = kFour ? 112 : kThree ? 160 : 240;
  static constexpr int kProducerRegisters = kConsumers > 2 ? 32 : 24;

  // Registers of a thread: scores and weights of one piece. There are two sets of weights, and of scores with
  // kTwoSets.
  using Score = std::conditional_t<kHalfScores, std::uint32_t, std::conditional_t<kIntScores, int, float>>;
  static constexpr int kScoreRegisters = kHalfScores ? kPiece / 4 : kPiece / 2;
  static constexpr int kWeightRegisters = kWideValues ? kPiece / 4 : kPiece / 8;
  static constexpr int kColumns = kWideValues ? kDim : kDim + static_cast<int>(kOnesRows);
  using Product = ptx::ValueProduct<kValues, kColumns>;
  using Output = typename Product::Register;
  static constexpr int kOutputRegisters = Product::kRegisters;
  static constexpr int kSums = kColumns / 2;  ///< f32 registers that hold all columns

  /// 16-bit weights with 160 registers: no room for two sets of them, so exponentials replace the scores and
  /// are packed when the product under way has ended.
  static constexpr bool kLatePack = kWideValues && kThree && kPieces == 1;

  // Exact weights, all measured (docs/kernels/sm90.md). kOrdered: multiply-adds are held back so that all
  // exponentials have some to overlap with. kBranches: a tile that moves no reference skips their factors.
  // kAsksEarly: the next stage's barrier is asked before the exponentials, behind which its answer queues up.
  static constexpr bool kOrdered = kIntScores && !kDirect && !kWideValues && kPieces == 1;
  static constexpr bool kBranches = kThree && !kIntScores;
  static constexpr bool kAsksEarly = !kDirect && !kWideOperands && (!kThree || kWideValues || kHalfOutput);

  // Where the f32 sums are that products are flushed to: nowhere (16-bit values: one accumulator for all
  // keys), in registers, or in shared memory where 160 registers or less have no room.
  static constexpr bool kFlushes = !kWideValues;
  static constexpr bool kSumsInShared = kFlushes && kConsumers > 2 && !kHalfOutput;
  static constexpr bool kSumsInRegisters = kFlushes && !kSumsInShared;
  /// Sums take what references moved at the next flush, which costs nothing there. Direct weights move them
  /// so rarely that sums in shared memory are scaled at once: two registers less.
  static constexpr bool kPends = kFlushes && !(kDirect && kSumsInShared);
  /// Sums in shared memory that are flushed to rarely need not be cleared first: few keys never get there.
  /// With 112 registers that spills.
  static constexpr bool kLazy = kSumsInShared && kDirect && !kFour;
  static constexpr bool kShares = kFlushes && kDirect;  ///< see output.cuh; others flush by 256 keys

  // Shared memory, bytes. Rows of more than 128 bytes are split into chunks of 128, the widest swizzle.
  static constexpr int kRowBytes = kWideOperands ? 2 * kDim : kDim;
  static constexpr int kChunkBytes = kRowBytes < 128 ? kRowBytes : 128;
  static constexpr int kChunks = kRowBytes / kChunkBytes;
  /// Whether reverse key order takes the second piece of a tile first (direct and 16-bit weights do not
  /// depend on the order), and how far apart pieces are, in units of 16 bytes.
  static constexpr bool kSwaps = kPieces == 2 && !kDirect && !kWideValues;
  static constexpr std::uint32_t kPieceOfK = kPiece * kChunkBytes / 16;
  static constexpr std::uint32_t kPieceOfV = kPiece * (kWideValues ? 128 : 1) / 16;
  static constexpr int kQBytes = kRows * kRowBytes;
  static constexpr int kKBytes = kKeys * kRowBytes;
  static constexpr int kVBytes = kWideValues ? kKeys * kDim * 2 : kColumns * kKeys;
  static constexpr int kVPitch = (kVBytes + 1023) / 1024 * 1024;
  static constexpr int kSumsBytes = kSumsInShared ? kConsumers * 128 * kSums * 4 : 0;
  static constexpr int kKeyScaleBytes = kBlockScales ? kKeys / 64 * 16 : 0;  ///< of a tile
  // Scales and shifts of an item's rows and channels come with its queries and stay until the rows are
  // written, so there is a slot more than there are Q stages. Without quantization there are none to speak
  // of.
  static constexpr bool kVectors = !(kWideOperands && kWideValues);
  static constexpr int kVectorBytes = kVectors ? 4 * (2 * kRows + 4 + (kWideValues ? 0 : 2 * kDim)) : 0;
  static constexpr int kLimit = 232448 - 2048;  ///< of a block, less barriers and the alignment of the base
  static constexpr int kQStages = kWideOperands && kDim == 128 ? 1 : 2;
  static constexpr int kSlots = kQStages + 1;
  static constexpr int kStageBytes = kKBytes + kVPitch;  ///< a K tile and the V tile behind it
  static constexpr int kFits =
      (kLimit - kQStages * kQBytes - kSumsBytes - kSlots * kVectorBytes) / kStageBytes;
  static constexpr int kStages = kFits < 4 ? kFits : 4;
  static constexpr int kOffsetStages = kQStages * kQBytes;
  static constexpr int kOffsetSums = kOffsetStages + kStages * kStageBytes;
  static constexpr int kOffsetVectors = kOffsetSums + kSumsBytes;
  static constexpr int kOffsetBarriers = kOffsetVectors + kSlots * kVectorBytes;
  static constexpr int kSharedBytes = kOffsetBarriers + 2048;

  static_assert(kStages >= 3 && kSharedBytes <= 232448 && kVectorBytes % 16 == 0 && kStageBytes % 1024 == 0 &&
                kKeyScaleBytes <= 32);
  static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <=
                (kConsumers + 1) * (65536 / kThreads / 8 * 8));
};

}  // namespace octavo::cuda::sm90
