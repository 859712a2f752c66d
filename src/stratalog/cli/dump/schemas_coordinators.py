"""The records of the coordinators' own topics, version by version, as Kafka 4.3.1 writes them.

``schema`` says how these tables are read. A record's key and value share an id, the first int16 of the key.
"""

from __future__ import annotations

# __transaction_state
TRANSACTION_LOG = """
TransactionLogKey 0 none 0
 transactionalId string 0
TransactionLogValue 0-1 1+ 0
 producerId int64 0+
 previousProducerId int64 1+ tag=0 default=-1
 nextProducerId int64 1+ tag=1 default=-1
 producerEpoch int16 0+
 nextProducerEpoch int16 1+ tag=3 default=-1
 transactionTimeoutMs int32 0+
 transactionStatus int8 0+
 transactionPartitions []PartitionsSchema? 0+
  topic string 0+
  partitionIds []int32 0+
 transactionLastUpdateTimestampMs int64 0+
 transactionStartTimestampMs int64 0+
 clientTransactionVersion int16 1+ tag=2 default=0
"""

# __share_group_state
SHARE_GROUP_STATE = """
ShareSnapshotKey 0 none 0
 groupId string 0
 topicId uuid 0
 partition int32 0
ShareSnapshotValue 0 0+ 0
 snapshotEpoch int32 0+
 stateEpoch int32 0+
 leaderEpoch int32 0+
 startOffset int64 0+
 deliveryCompleteCount int32 0+ tag=0 default=-1
 createTimestamp int64 0+
 writeTimestamp int64 0+
 stateBatches []StateBatch 0+
  firstOffset int64 0+
  lastOffset int64 0+
  deliveryState int8 0+
  deliveryCount int16 0+
ShareUpdateKey 0 none 1
 groupId string 0
 topicId uuid 0
 partition int32 0
ShareUpdateValue 0 0+ 1
 snapshotEpoch int32 0+
 leaderEpoch int32 0+
 startOffset int64 0+
 deliveryCompleteCount int32 0+ tag=0 default=-1
 stateBatches []StateBatch 0+
  firstOffset int64 0+
  lastOffset int64 0+
  deliveryState int8 0+
  deliveryCount int16 0+
"""

# What a classic consumer says and is told inside GroupMetadataValue.
CONSUMER_PROTOCOL = """
ConsumerProtocolAssignment 0-3 none
 assignedPartitions []TopicPartition 0+
  topic string 0+
  partitions []int32 0+
 userData bytes? 0+
ConsumerProtocolSubscription 0-3 none
 topics []string 0+
 userData bytes? 0+
 ownedPartitions []TopicPartition 1+
  topic string 1+
  partitions []int32 1+
 generationId int32 2+ default=-1
 rackId string? 3+
"""

# __consumer_offsets
CONSUMER_OFFSETS = """
LegacyOffsetCommitKey 0 none 0
 group string 0
 topic string 0
 partition int32 0
LegacyOffsetCommitValue 0 none 0
 offset int64 0
 metadata string 0
 commitTimestamp int64 0
OffsetCommitKey 0 none 1
 group string 0
 topic string 0
 partition int32 0
OffsetCommitValue 0-4 4+ 1
 offset int64 0+
 leaderEpoch int32 3+ default=-1
 metadata string 0+
 commitTimestamp int64 0+
 expireTimestamp int64 1 default=-1
 topicId uuid 4+ tag=0
GroupMetadataKey 0 none 2
 group string 0
GroupMetadataValue 0-4 4+ 2
 protocolType string 0+
 generation int32 0+
 protocol string? 0+
 leader string? 0+
 currentStateTimestamp int64 2+ default=-1
 members []MemberMetadata 0+
  memberId string 0+
  groupInstanceId string? 3+
  clientId string 0+
  clientHost string 0+
  rebalanceTimeout int32 1+ default=-1
  sessionTimeout int32 0+
  subscription bytes 0+
  assignment bytes 0+
ConsumerGroupMetadataKey 0 none 3
 groupId string 0
ConsumerGroupMetadataValue 0 0+ 3
 epoch int32 0+
 metadataHash int64 0+ tag=0 default=0
ConsumerGroupPartitionMetadataKey 0 none 4
 groupId string 0
ConsumerGroupPartitionMetadataValue 0 0+ 4
 topics []TopicMetadata 0+
  topicId uuid 0+
  topicName string 0+
  numPartitions int32 0+
  partitionMetadata []PartitionMetadata 0+
   partition int32 0+
   racks []string 0+
ConsumerGroupMemberMetadataKey 0 none 5
 groupId string 0
 memberId string 0
ConsumerGroupMemberMetadataValue 0 0+ 5
 instanceId string? 0+
 rackId string? 0+
 clientId string 0+
 clientHost string 0+
 subscribedTopicNames []string 0+
 subscribedTopicRegex string? 0+
 rebalanceTimeoutMs int32 0+ default=-1
 serverAssignor string? 0+
 classicMemberMetadata ClassicMemberMetadata? 0+ tag=0
  sessionTimeoutMs int32 0+
  supportedProtocols []ClassicProtocol 0+
   name string 0+
   metadata bytes 0+
ConsumerGroupTargetAssignmentMetadataKey 0 none 6
 groupId string 0
ConsumerGroupTargetAssignmentMetadataValue 0 0+ 6
 assignmentEpoch int32 0+
 assignmentTimestamp int64 0+ tag=0 default=0
ConsumerGroupTargetAssignmentMemberKey 0 none 7
 groupId string 0
 memberId string 0
ConsumerGroupTargetAssignmentMemberValue 0 0+ 7
 topicPartitions []TopicPartition 0+
  topicId uuid 0+
  partitions []int32 0+
ConsumerGroupCurrentMemberAssignmentKey 0 none 8
 groupId string 0
 memberId string 0
ConsumerGroupCurrentMemberAssignmentValue 0 0+ 8
 memberEpoch int32 0+
 previousMemberEpoch int32 0+
 state int8 0+
 assignedPartitions []TopicPartitions 0+
  topicId uuid 0+
  partitions []int32 0+
  assignmentEpochs []int32? 0+ tag=0
 partitionsPendingRevocation []TopicPartitions 0+
ShareGroupMemberMetadataKey 0 none 10
 groupId string 0
 memberId string 0
ShareGroupMemberMetadataValue 0 0+ 10
 rackId string? 0+
 clientId string 0+
 clientHost string 0+
 subscribedTopicNames []string 0+
ShareGroupMetadataKey 0 none 11
 groupId string 0
ShareGroupMetadataValue 0 0+ 11
 epoch int32 0+
 metadataHash int64 0+
ShareGroupTargetAssignmentMetadataKey 0 none 12
 groupId string 0
ShareGroupTargetAssignmentMetadataValue 0 0+ 12
 assignmentEpoch int32 0+
 assignmentTimestamp int64 0+ tag=0 default=0
ShareGroupTargetAssignmentMemberKey 0 none 13
 groupId string 0
 memberId string 0
ShareGroupTargetAssignmentMemberValue 0 0+ 13
 topicPartitions []TopicPartition 0+
  topicId uuid 0+
  partitions []int32 0+
ShareGroupCurrentMemberAssignmentKey 0 none 14
 groupId string 0
 memberId string 0
ShareGroupCurrentMemberAssignmentValue 0 0+ 14
 memberEpoch int32 0+
 previousMemberEpoch int32 0+
 state int8 0+
 assignedPartitions []TopicPartitions 0+
  topicId uuid 0+
  partitions []int32 0+
ShareGroupStatePartitionMetadataKey 0 none 15
 groupId string 0
ShareGroupStatePartitionMetadataValue 0 0+ 15
 initializingTopics []TopicPartitionsInfo 0+
  topicId uuid 0+
  topicName string 0+
  partitions []int32 0+
 initializedTopics []TopicPartitionsInfo 0+
 deletingTopics []TopicInfo 0+
  topicId uuid 0+
  topicName string 0+
ConsumerGroupRegularExpressionKey 0 none 16
 groupId string 0
 regularExpression string 0
ConsumerGroupRegularExpressionValue 0 0+ 16
 topics []string 0+
 version int64 0+
 timestamp int64 0+
StreamsGroupMetadataKey 0 none 17
 groupId string 0
StreamsGroupMetadataValue 0 0+ 17
 epoch int32 0+
 metadataHash int64 0+
 validatedTopologyEpoch int32 0+ tag=0 default=-1
 lastAssignmentConfigs []LastAssignmentConfig? 0+ tag=1
  key string 0+
  value string 0+
StreamsGroupMemberMetadataKey 0 none 19
 groupId string 0
 memberId string 0
StreamsGroupMemberMetadataValue 0 0+ 19
 instanceId string? 0+
 rackId string? 0+
 clientId string 0+
 clientHost string 0+
 rebalanceTimeoutMs int32 0+ default=-1
 topologyEpoch int32 0+
 processId string 0+
 userEndpoint Endpoint? 0+
  host string 0+
  port uint16 0+
 clientTags []KeyValue 0+
  key string 0+
  value string 0+
StreamsGroupTargetAssignmentMetadataKey 0 none 20
 groupId string 0
StreamsGroupTargetAssignmentMetadataValue 0 0+ 20
 assignmentEpoch int32 0+
 assignmentTimestamp int64 0+ tag=0 default=0
StreamsGroupTargetAssignmentMemberKey 0 none 21
 groupId string 0
 memberId string 0
StreamsGroupTargetAssignmentMemberValue 0 0+ 21
 activeTasks []TaskIds 0+
  subtopologyId string 0+
  partitions []int32 0+
 standbyTasks []TaskIds 0+
 warmupTasks []TaskIds 0+
StreamsGroupCurrentMemberAssignmentKey 0 none 22
 groupId string 0
 memberId string 0
StreamsGroupCurrentMemberAssignmentValue 0 0+ 22
 memberEpoch int32 0+
 previousMemberEpoch int32 0+
 state int8 0+
 activeTasks []TaskIds 0+
  subtopologyId string 0+
  partitions []int32 0+
  assignmentEpochs []int32? 0+ tag=0
 standbyTasks []TaskIds 0+
 warmupTasks []TaskIds 0+
 activeTasksPendingRevocation []TaskIds 0+
 standbyTasksPendingRevocation []TaskIds 0+
 warmupTasksPendingRevocation []TaskIds 0+
StreamsGroupTopologyKey 0 none 23
 groupId string 0
StreamsGroupTopologyValue 0 0+ 23
 epoch int32 0+
 subtopologies []Subtopology 0+
  subtopologyId string 0+
  sourceTopics []string 0+
  sourceTopicRegex []string 0+
  stateChangelogTopics []TopicInfo 0+
   name string 0+
   partitions int32 0+
   replicationFactor int16 0+
   topicConfigs []TopicConfig 0+
    key string 0+
    value string 0+
  repartitionSinkTopics []string 0+
  repartitionSourceTopics []TopicInfo 0+
  copartitionGroups []CopartitionGroup 0+
   sourceTopics []int16 0+
   sourceTopicRegex []int16 0+
   repartitionSourceTopics []int16 0+
"""
