// What a broker says, in Chinese, by its codes: findings of a diagnosis, problems of a broker, why
// something is allowed or denied, kinds of refusals; and its next steps that never vary, by their
// English text. A test finds what is missing here.
export const findings = {
  "no_lag": ["该组没有积压：所有记录都已处理完。", "无需操作"],
  "no_members": ["该组没有成员：有 {lag} 条记录无人消费。", "启动该组的消费者"],
  "rebalancing": ["该组正在再均衡：成员在等待分区。", "一分钟后再看；如果持续如此，请查看哪些成员离开又加入（重启）"],
  "idle_members": ["{members} 个成员中有 {idle} 个无事可做。", "最多使用 {partitions} 个成员，或增加分区"],
  "in_flight_at_limit": ["有 {in_flight} 条消息在途，已达上限：不再投递更多。", "更早确认，或调高 share.partition.max.record.locks"],
  "locks_expire": ["有 {timed_out} 个锁已过期：消费者的处理时间超过锁的时长。", "调高 share.record.lock.duration.ms，延长锁，或一次少取一些"],
  "redelivered": ["消费者退回了 {delivered} 条消息中的 {released} 条。", "查明失败原因：消费者的日志，以及其死信的原因"],
  "hot_partition": ["{percent} % 的积压在 {partition} 中。", "查看那里是否多数记录属于同一个键，或其消费者比其他的慢"],
  "stopped_partitions": ["有 {count} 个分区没有任何提交，而其他分区在推进。", "查看其消费者是否被某条消息阻塞，或没有运行"],
  "stopped": ["期间没有任何提交；有 {lag} 条记录在等待。", "查看消费者的日志；如果它很少提交，请用更长的时间再看一次"],
  "catching_up": ["该组正在追赶：约 {seconds} 秒后处理完。", "等待"],
  "too_slow": ["每秒来 {produced} 条记录，处理完 {consumed} 条。", "增加消费者（不超过分区数），或加快处理"],
};

// [what, why, next step]
export const problems = {
  "disk_unreadable": ["磁盘", "无法读取其可用空间", "检查磁盘"],
  "disk_full": ["磁盘", "已满，拒绝写入记录", "在 Broker 的磁盘上腾出空间，或缩短大主题的保留时间"],
  "storage_unavailable": ["存储", "{cause}", "检查 ZooKeeper 和各 Bookie：headrace cluster status"],
  "partitions_offline": ["{what}", "集群中有 {count} 个分区没有存活的 Broker 提供服务", "启动已停止的 Broker：headrace cluster status"],
  "copies_missing": ["副本", "此 Broker 的分区缺少 {count} 个条目副本", "等待 BookKeeper 的 AutoRecovery，或启动已停止的 Bookie"],
  "broker_unreachable": ["Broker {id}", "没有应答：{cause}", "查看它是否在运行：headrace cluster status"],
  "unavailable": ["{what}", "暂时不可用：{cause}", "{next_step}"],
  "damaged": ["{what}", "已损坏或丢失：{cause}", "{next_step}"],
};

export const reasons = {
  "super_user": "{principal} 列在 super.users 中",
  "damaged_tenants": "{principal} 属于两个租户，或某个租户存储的主体已损坏",
  "shared_topic": "该主题属于另一个租户，任何人都不能以此名称更改它",
  "other_tenant": "{principal} 属于租户 {tenant}，而该资源不属于它",
  "no_tenant": "{principal} 不属于任何租户，而该资源属于某个租户",
  "all_tenants": "{name} 保存所有租户的内容",
  "own_tenant": "该资源属于主体所在的租户 {tenant}",
  "operators_rule": "由运维人员的一条规则决定，其范围不限于此租户",
  "closed_tenant": "主体所属的租户 {tenant} 只给予其主体针对其自身名称的规则所允许的操作（access rules），而没有规则允许此操作",
  "rule": "由此规则决定：{rule}",
  "other_rules": "有规则适用于该资源，但没有一条适用于此主体、主机和操作",
  "no_rule": "没有规则适用于该资源，且 allow.everyone.if.no.acl.found 为 {value}",
  "may_differ": "在租户的监听器或服务器名称上，结果可能不同（docs/TENANTS.md）",
};

export const errors = {
  "HeadraceError": "请求失败", "Retriable": "暂时无法执行", "Rejected": "请求被拒绝", "Fenced": "已被更新的纪元取代", "Fatal": "Broker 遇到严重错误",
  "AuthenticationFailed": "身份验证失败", "SaslStateIllegal": "SASL 步骤的顺序不对", "MechanismUnsupported": "不支持该 SASL 机制", "CredentialInvalid": "凭据无效", "CredentialDuplicate": "用户已存在，或凭据重复", "CredentialUnknown": "凭据不存在", "BrokerUnknown": "没有该 ID 的在线 Broker",
  "StorageUnavailable": "存储暂时不可用", "CopiesDamaged": "所有副本都已损坏", "DiskFull": "磁盘已满", "LedgerUnknown": "账本不存在", "LedgerSealed": "账本已封存", "LedgerFenced": "账本已被隔离", "LedgerLost": "账本已丢失", "DataCorrupt": "数据已损坏", "ChainMissing": "分区的账本链缺失", "FactMissing": "元数据缺失", "FolderInUse": "目录正被使用", "FormatUnsupported": "不支持该格式版本", "CompactionInterrupted": "压实被中断",
  "OffsetOutOfRange": "偏移量超出范围", "BatchCorrupt": "批次已损坏", "BatchExpandsTooFar": "批次解压后过大", "BatchTooLarge": "批次过大", "RecordInvalid": "记录无效", "LiteTopicsFull": "轻量主题已达上限", "UnsupportedForMessageFormat": "消息格式不支持此操作", "CodecUnsupported": "不支持该压缩算法", "OutOfOrderSequence": "序列号不连续", "DuplicateSequence": "序列号重复", "UnknownProducerId": "生产者 ID 不存在", "ProducerFenced": "生产者已被取代",
  "TransactionStateInvalid": "事务状态不允许此操作", "TransactionCoordinatorFenced": "事务协调者已被取代", "TransactionAbortable": "事务必须中止", "ConcurrentTransactions": "事务正在并发变更", "TransactionUnverified": "事务未通过验证", "TransactionalProducerFenced": "事务生产者已被取代", "ProducerIdMappingInvalid": "生产者 ID 与事务 ID 不匹配", "TransactionTimeoutInvalid": "事务超时无效", "TransactionalIdUnknown": "事务 ID 不存在", "TransactionalIdRefused": "事务 ID 被拒绝",
  "Unauthorized": "没有权限", "TopicUnauthorized": "没有该主题的权限", "GroupUnauthorized": "没有该组的权限", "ClusterUnauthorized": "没有集群的权限", "TransactionalIdUnauthorized": "没有该事务 ID 的权限", "DelegationTokenUnauthorized": "没有该委托令牌的权限", "DelegationTokenDisabled": "委托令牌未启用", "DelegationTokenUnknown": "委托令牌不存在", "DelegationTokenOwnerMismatch": "委托令牌属于他人", "DelegationTokenRequestForbidden": "不允许请求委托令牌", "DelegationTokenExpired": "委托令牌已过期", "PrincipalTypeInvalid": "主体类型无效", "SecurityDisabled": "访问控制未启用",
  "OffsetCommitUnstable": "偏移量的提交尚未稳定", "VersionConflict": "版本冲突", "MetadataUnavailable": "元数据暂时不可用", "TopicUnknown": "主题不存在", "TopicIdUnknown": "主题 ID 不存在", "TopicExists": "主题已存在", "TopicNameInvalid": "主题名称无效", "PartitionsInvalid": "分区数无效", "AssignmentInvalid": "分配无效", "NoReassignment": "没有进行中的迁移", "SubscriptionUnknown": "订阅不存在", "TelemetryTooLarge": "遥测数据过大", "ReplicationFactorInvalid": "副本数无效", "ConfigInvalid": "设置无效", "RequestInvalid": "请求无效", "VersionUnsupported": "不支持该版本", "AcksInvalid": "acks 无效",
  "NotOwner": "此 Broker 不是该分区的所有者", "BrokerIdInUse": "Broker ID 已被使用", "LeaderEpochFenced": "领导者纪元已过时", "LeaderEpochUnknown": "领导者纪元未知", "BrokerUnreachable": "无法连接到 Broker", "PolicyViolation": "违反策略", "CoordinatorLoading": "协调者正在加载", "CoordinatorUnavailable": "协调者暂时不可用", "NotCoordinator": "此 Broker 不是协调者",
  "PeerVersionDiffers": "另一个 Broker 的版本不同",
  "GroupIdInvalid": "组 ID 无效", "GroupUnknown": "组不存在", "GroupNotEmpty": "组中还有成员", "GroupSubscribed": "组仍订阅该主题", "MemberUnknown": "成员不存在", "MemberIdRequired": "需要成员 ID", "IllegalGeneration": "组的代次已过时", "RebalanceInProgress": "组正在再均衡", "InconsistentProtocol": "成员的协议不一致", "SessionTimeoutInvalid": "会话超时无效", "InstanceIdFenced": "实例 ID 已被取代", "GroupFull": "组已满", "MemberEpochStale": "成员纪元已过时", "InstanceIdUnreleased": "实例 ID 尚未释放", "AssignorUnsupported": "不支持该分配器", "RegularExpressionInvalid": "正则表达式无效", "StreamsTopologyInvalid": "Streams 拓扑无效", "OffsetMetadataTooLarge": "偏移量的元数据过大",
  "FetchSessionUnknown": "拉取会话不存在", "FetchSessionEpochInvalid": "拉取会话的纪元无效", "RecordStateInvalid": "记录的状态不允许此操作", "DeliverySettled": "该投递已被确认或退回", "DeliveryFinished": "该投递已结束", "DeliveryLost": "该投递已丢失", "DeliveryExpired": "该投递的锁已过期", "DeliveryTaken": "消息已投递给其他消费者", "DeliveryUnknown": "该投递不存在", "ReceiptInvalid": "回执无效", "GroupKindMismatch": "组的类型不符", "MemberEpochFenced": "成员纪元已被取代", "ShareSessionUnknown": "共享会话不存在", "ShareSessionEpochInvalid": "共享会话的纪元无效", "QuotaExceeded": "超出配额", "WriteDeferred": "写入被推迟", "ShareSessionLimitReached": "共享会话已达上限",
  "Contradiction": "请求自相矛盾", "TaskUnknown": "任务不存在", "VersionMismatch": "设置已被他人更改", "SchemasNotConfigured": "未配置模式来源",
  "TenantNotEmpty": "租户中还有主体", "TooManyTasks": "运行中的任务已达上限", "EditRefused": "不能这样修改该死信", "LetterSent": "该死信已经发回", "RedriveFailed": "重新投递提前结束",
  "SchemaUnusable": "模式无法使用", "RegistryRefused": "模式注册表拒绝了请求", "RegistryUnavailable": "模式注册表没有应答", "SchemaHasReferences": "不支持引用其他模式的模式",
};

export const steps = {
  "create the topic, or check its name": "创建该主题，或检查其名称",
  "start it again": "重新启动它",
  "list them again": "重新列出",
  "set headrace.authorizer=acl on every broker, then restart": "在每个 Broker 上设置 headrace.authorizer=acl，然后重启",
  "set headrace.schema.registry.url or headrace.schema.folder on every broker, then restart": "在每个 Broker 上设置 headrace.schema.registry.url 或 headrace.schema.folder，然后重启",
  "read the settings and their ETag again, then decide again": "重新读取设置及其 ETag，再作决定",
  "check the group's id": "检查组 ID",
  "correct the request before you retry it": "先更正请求再重试",
  "stop the group's consumers, then try again": "停止该组的消费者，然后重试",
  "send valid credentials": "发送有效的凭据",
  "ask an administrator: `headrace acl explain` names the rule": "询问管理员：`headrace acl explain` 会指出是哪条规则",
  "do what the detail says; if it names no step, no request of this kind is allowed": "按详情所述操作；如果没有说明步骤，则不允许此类请求",
  "wait as long as Retry-After says, then try again": "按 Retry-After 所示的时间等待，然后重试",
  "make room on the broker's disk, then try again": "在 Broker 的磁盘上腾出空间，然后重试",
  "try again": "重试",
};
