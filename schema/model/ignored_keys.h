// Keys of config.json that every family of transformers can have, and that change neither the model
// nor its training: how it is called, loaded and labelled, and how text is generated with it. A
// family names further ones (ConfigKeys::Ignored).
#pragma once

#include <string_view>

namespace pp {

inline constexpr std::string_view kIgnoredKeys[] = {
    // Of the file and what reads it.
    "architectures", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
    "torch_dtype", "dtype", "tokenizer_class", "use_bfloat16", "torchscript", "tf_legacy_loss",
    "attn_implementation", "_attn_implementation", "_attn_implementation_autoset",
    "experts_implementation", "_experts_implementation", "attn_implementation_internal",
    "_attn_implementation_internal", "unsloth_version", "unsloth_fixed",
    // Of what a call returns, and in how many pieces it is computed.
    "return_dict", "output_attentions", "_output_attentions", "output_hidden_states", "use_cache",
    "chunk_size_feed_forward", "is_decoder", "pretraining_tp",
    // Of other tasks.
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    "prefix", "tie_encoder_decoder", "cross_attention_hidden_size",
    // Tokens with a meaning.
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
    // Of generation.
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping",
    "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p",
    "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens", "epsilon_cutoff", "eta_cutoff", "penalty_alpha", "max_time",
    "cache_implementation", "guidance_scale", "renormalize_logits"};

}  // namespace pp
