// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "optim/update_rule.h"

namespace deepspeed::optim {

/// The update rule that a config names: `type` is optimizer.type (any case), `params` is optimizer.params (null = {}).
/// There are Adam (Kingma and Ba, 2015; with adam_w_mode, which is the default, the same as AdamW), AdamW (Loshchilov
/// and Hutter, 2019), Adagrad (Duchi et al., 2011), Lion (Chen et al., 2023) and SGD (with momentum and Nesterov's
/// form). Throws ConfigError for another type or parameter, naming the valid ones.
std::unique_ptr<UpdateRule> make_rule(std::string_view type, const nlohmann::json& params);

/// The numbers of a parameter group at the start, with the rule's own defaults. SGD's momentum is `beta1`. Throws
/// ConfigError like make_rule, and for a number out of range.
Hyper hyper_from(std::string_view type, const nlohmann::json& params);

}  // namespace deepspeed::optim
